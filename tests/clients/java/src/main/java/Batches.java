import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.openai.client.OpenAIClient;
import com.openai.core.MultipartField;
import com.openai.core.http.HttpResponse;
import com.openai.models.batches.Batch;
import com.openai.models.batches.BatchCreateParams;
import com.openai.models.completions.Completion;
import com.openai.models.completions.CompletionCreateParams;
import com.openai.models.files.FileCreateParams;
import com.openai.models.files.FileObject;
import com.openai.models.files.FilePurpose;
import java.io.ByteArrayInputStream;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/** Files, and a batch to its results. */
final class Batches {
    private static final OpenAIClient CLIENT = Check.client("batches", "", "any", 0);

    static void run() throws Exception {
        Check.check("files and a batch, to its results", Batches::batch);
    }

    private static void batch() throws Exception {
        StringBuilder text = new StringBuilder();
        for (String name : List.of("a", "b", "c")) {
            text.append(String.format(
                    "{\"custom_id\": \"%s\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {\"model\": "
                            + "\"toy\", \"prompt\": \"Say %s\", \"max_tokens\": 3, \"temperature\": %d}}%n",
                    name, name, name.equals("b") ? 9 : 1));
        }
        byte[] bytes = text.toString().getBytes(StandardCharsets.UTF_8);
        MultipartField<InputStream> content = MultipartField.<InputStream>builder()
                .value(new ByteArrayInputStream(bytes)).filename("in.jsonl").build();
        FileObject file = CLIENT.files().create(
                FileCreateParams.builder().file(content).purpose(FilePurpose.BATCH).build());
        Check.require(file.bytes() == bytes.length && file.filename().equals("in.jsonl"), file);
        Batch batch = CLIENT.batches().create(BatchCreateParams.builder()
                .inputFileId(file.id())
                .endpoint(BatchCreateParams.Endpoint.V1_COMPLETIONS)
                .completionWindow(BatchCreateParams.CompletionWindow._24H)
                .build());
        for (int attempt = 0; !batch.status().equals(Batch.Status.COMPLETED); attempt++) {
            Check.require(attempt < 1000, batch);
            Thread.sleep(20);
            batch = CLIENT.batches().retrieve(batch.id());
        }
        batch.validate();
        Check.require(batch.requestCounts().get().completed() == 2, batch);
        Check.require(batch.requestCounts().get().failed() == 1, batch);
        List<JsonNode> found = lines(batch.outputFileId().get());
        Check.require(found.size() == 2 && found.get(1).get("custom_id").asText().equals("c"), found);
        JsonNode error = lines(batch.errorFileId().get()).get(0).get("response");
        Check.require(error.get("status_code").asInt() == 400, error);
        JsonNode first = found.get(0).get("response");
        Completion again = CLIENT.completions().create(CompletionCreateParams.builder()
                .model("toy").prompt("Say a").maxTokens(3).seed(first.get("seed").asLong()).build());
        String once = first.get("body").get("choices").get(0).get("text").asText();
        Check.require(again.choices().get(0).text().equals(once), again);
        Check.require(CLIENT.batches().list().autoPager().iterator().next().id().equals(batch.id()), batch);
        Check.require(CLIENT.files().delete(file.id()).deleted(), file);
    }

    private static List<JsonNode> lines(String fileId) throws Exception {
        List<JsonNode> found = new ArrayList<>();
        try (HttpResponse response = CLIENT.files().content(fileId)) {
            String text = new String(response.body().readAllBytes(), StandardCharsets.UTF_8);
            for (String line : text.split("\n")) found.add(new ObjectMapper().readTree(line));
        }
        return found;
    }
}
