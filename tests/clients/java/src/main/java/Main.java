/** openai-java against a real server: whole completions, streams, batches, failures. */
public final class Main {
    public static void main(String[] arguments) throws Exception {
        Answers.run();
        Streams.run();
        Batches.run();
        Failures.run();
        System.exit(Check.failed > 0 ? 1 : 0); // OkHttp's threads would keep the process for a minute
    }
}
