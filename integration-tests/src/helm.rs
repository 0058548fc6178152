//! Real Helm, the validator of Kubernetes manifests, and what they make of the chart: manifests as a test can ask them.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{client::installed, git::Done};

/// The root of the repository: commands of the documentation are written from there.
pub fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("the workspace").to_owned()
}

/// The chart's directory.
pub fn chart() -> PathBuf {
    workspace().join("helm/packgate")
}

/// One of the chart's values files: `embedded` or `sidecar`.
pub fn values(name: &str) -> PathBuf {
    chart().join(format!("ci/{name}-values.yaml"))
}

/// Directories with `helm`, for the PATH of a shell.
pub fn bin() -> PathBuf {
    let helm = installed("bin/helm");
    helm.parent().expect("in a directory").to_owned()
}

/// Gives a command an environment in which helm finds neither anybody's settings nor a cluster, but only `home`.
pub fn isolate(command: &mut Command, home: &Path) {
    for name in [
        "HELM_CACHE_HOME",
        "HELM_CONFIG_HOME",
        "HELM_DATA_HOME",
        "HELM_PLUGINS",
    ] {
        command.env(name, home.join(name));
    }
    command
        .env("KUBECONFIG", "/nonexistent")
        .env("HOME", home)
        .stdin(Stdio::null());
}

/// Runs helm to its end, whatever it returns.
pub fn helm<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Done {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(installed("bin/helm"));
    command.args(args);
    isolate(&mut command, home.path());
    Done::of(command.output().expect("helm can be run"))
}

/// The chart rendered with one of its values files and more settings, each as `--set-json` takes them.
#[track_caller]
pub fn render(name: &str, settings: &[&str]) -> Manifests {
    let done = attempt(name, settings);
    assert_eq!(done.code, Some(0), "{settings:?}: {}", done.stderr);
    Manifests::parse(&done.stdout)
}

/// The same, whatever becomes of it.
pub fn attempt(name: &str, settings: &[&str]) -> Done {
    let mut args: Vec<String> = ["template", "git", "--namespace", "git", "--values"]
        .map(str::to_owned)
        .into();
    args.push(values(name).display().to_string());
    args.push(chart().display().to_string());
    for setting in settings {
        args.extend(["--set-json".to_owned(), (*setting).to_owned()]);
    }
    helm(args)
}

/// `examples/helm-own-deployment` with its dependency built: in a copy, because helm writes beside it.
pub struct OwnDeployment(TempDir);

impl OwnDeployment {
    /// Copies it, with the chart where it looks for it.
    pub fn build() -> OwnDeployment {
        let dir = tempfile::tempdir().unwrap();
        for part in ["helm/packgate", "examples/helm-own-deployment"] {
            copy(&workspace().join(part), &dir.path().join(part));
        }
        let own = OwnDeployment(dir);
        let done = helm([
            OsStr::new("dependency"),
            OsStr::new("build"),
            own.path().as_os_str(),
        ]);
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        own
    }

    /// Where it is.
    pub fn path(&self) -> PathBuf {
        self.0.path().join("examples/helm-own-deployment")
    }

    /// Rendered as it is.
    pub fn render(&self) -> Manifests {
        let path = self.path().display().to_string();
        let done = helm(["template", "git", "--namespace", "git", &path]);
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        Manifests::parse(&done.stdout)
    }
}

/// A directory with all that is in it.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}

/// YAML as JSON values: one document.
pub fn yaml(text: &str) -> Value {
    serde_yaml::from_str(text).unwrap_or_else(|error| panic!("{error}:\n{text}"))
}

/// Rendered manifests.
pub struct Manifests {
    text: String,
    documents: Vec<Value>,
}

impl Manifests {
    /// Reads a stream of documents.
    pub fn parse(text: &str) -> Manifests {
        use serde::Deserialize;
        let documents = serde_yaml::Deserializer::from_str(text)
            .map(|document| Value::deserialize(document).unwrap_or_else(|e| panic!("{e}:\n{text}")))
            .filter(|document| !document.is_null())
            .collect();
        Manifests {
            text: text.to_owned(),
            documents,
        }
    }

    /// As helm wrote them.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What there is, in the order of their names.
    pub fn kinds(&self) -> Vec<&str> {
        let mut kinds: Vec<_> = self.documents.iter().map(kind).collect();
        kinds.sort_unstable();
        kinds
    }

    /// The manifests of this kind.
    pub fn of_kind(&self, wanted: &str) -> Vec<&Value> {
        let all = self.documents.iter();
        all.filter(|manifest| kind(manifest) == wanted).collect()
    }

    /// The only one of this kind.
    #[track_caller]
    pub fn one(&self, wanted: &str) -> &Value {
        let found = self.of_kind(wanted);
        assert_eq!(found.len(), 1, "one {wanted} in {:?}", self.kinds());
        found[0]
    }

    /// Deployment or StatefulSet.
    pub fn workload(&self) -> &Value {
        let is_one = |m: &&Value| ["Deployment", "StatefulSet"].contains(&kind(m));
        self.documents.iter().find(is_one).expect("a workload")
    }

    /// What the workload's pods are.
    pub fn pod(&self) -> &Value {
        &self.workload()["spec"]["template"]
    }

    /// A container of the workload's pods by its name, init containers included.
    #[track_caller]
    pub fn container(&self, name: &str) -> &Value {
        let mut all = containers(&self.pod()["spec"]).into_iter();
        all.find(|container| container["name"] == name)
            .unwrap_or_else(|| panic!("no container {name}"))
    }

    /// Each pod there will be: those of the workload, and those of tests.
    pub fn pods(&self) -> Vec<&Value> {
        let templates = self.documents.iter().filter_map(|m| match kind(m) {
            "Pod" => Some(m),
            "Deployment" | "StatefulSet" => Some(&m["spec"]["template"]),
            _ => None,
        });
        templates.collect()
    }

    /// The `packgate.yaml` in the ConfigMap.
    pub fn config(&self) -> &str {
        let config = &self.one("ConfigMap")["data"]["packgate.yaml"];
        config.as_str().expect("packgate.yaml")
    }

    /// Asserts that `kubernetes-validate --strict` takes all of them, for the oldest version of Kubernetes that the chart is
    /// for and for the newest that it knows. It has no CustomResourceDefinitions and only warns of those.
    #[track_caller]
    pub fn assert_valid(&self) {
        for version in ["1.29", "1.37"] {
            let done = self.validate(version);
            let said = done.stdout + &done.stderr;
            assert_eq!(done.code, Some(0), "{said}");
            let custom = self.of_kind("PodMonitor").len() + self.of_kind("PrometheusRule").len();
            assert_eq!(
                said.matches(" passed for resource ").count(),
                self.documents.len() - custom,
                "every manifest was looked at: {said}"
            );
        }
    }

    /// Asks about one version of Kubernetes.
    pub fn validate(&self, version: &str) -> Done {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("manifests.yaml");
        fs::write(&file, &self.text).unwrap();
        let mut command = Command::new(installed("bin/kubernetes-validate"));
        command.args(["--strict", "--kubernetes-version", version]);
        command.arg(&file);
        Done::of(command.output().expect("kubernetes-validate can be run"))
    }
}

fn kind(manifest: &Value) -> &str {
    manifest["kind"].as_str().expect("a kind")
}

/// The containers of a pod's `spec`, those that run before the others first.
pub fn containers(spec: &Value) -> Vec<&Value> {
    let lists = ["initContainers", "containers"].into_iter();
    lists
        .flat_map(|list| spec[list].as_array().into_iter().flatten())
        .collect()
}
