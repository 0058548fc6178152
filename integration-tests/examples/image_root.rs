//! Runs the build stage of the Dockerfile on this machine, for `make test`: an optimised build takes longer than a test may.

fn main() {
    let workdir = packgate_integration_tests::image::build();
    println!("{}", workdir.join("image").display());
}
