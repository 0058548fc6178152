import java.io.File;
import org.eclipse.jgit.api.Git;

/** JGit as a client: {@code clone URL DIR}, {@code fetch DIR}, {@code push DIR}, {@code version}. */
public final class Jgit {
    public static void main(String... arguments) {
        try {
            run(arguments);
        } catch (Exception error) {
            // What a user sees is the whole chain: JGit puts the cause into causes.
            for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                System.err.println(cause);
            }
            System.exit(1);
        }
    }

    private static void run(String... arguments) throws Exception {
        switch (arguments[0]) {
            case "clone":
                Git.cloneRepository().setURI(arguments[1]).setDirectory(new File(arguments[2])).call().close();
                break;
            case "fetch":
                try (Git git = Git.open(new File(arguments[1]))) {
                    git.fetch().call();
                }
                break;
            case "push":
                try (Git git = Git.open(new File(arguments[1]))) {
                    git.push().add("refs/heads/main").call();
                }
                break;
            case "version":
                System.out.println(Git.class.getPackage().getImplementationVersion());
                break;
            default:
                System.exit(64);
        }
    }
}
