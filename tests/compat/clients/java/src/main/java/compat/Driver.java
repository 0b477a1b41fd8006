package compat;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Driver of the official Java client; the line protocol is in ../README.md. */
public final class Driver {
  private static final Gson GSON = new GsonBuilder().serializeNulls().create();
  private static final Pattern RESPONSE_CODE = Pattern.compile("response-code=(\\d+)");

  private Driver() {}

  public static void main(String[] arguments) throws IOException {
    Operations operations =
        new Operations(JsonParser.parseString(arguments[0]).getAsJsonObject());
    PrintStream output = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    BufferedReader input =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    ExecutorService executor = Executors.newCachedThreadPool();
    String line;
    while ((line = input.readLine()) != null) {
      JsonObject command = JsonParser.parseString(line).getAsJsonObject();
      executor.execute(() -> output.println(GSON.toJson(answer(operations, command))));
    }
    // The client's own threads must not keep the process alive.
    Runtime.getRuntime().halt(0);
  }

  private static JsonObject answer(Operations operations, JsonObject command) {
    JsonObject reply = new JsonObject();
    reply.add("id", command.get("id"));
    try {
      reply.add("result", GSON.toJsonTree(operations.run(command)));
    } catch (Throwable failure) { // whatever the client raises is what the test wants to see
      reply.add("error", describe(failure));
    }
    return reply;
  }

  /** The code is only in the text of the exception, or of one of its causes. */
  private static JsonObject describe(Throwable failure) {
    JsonObject described = new JsonObject();
    described.add("code", null);
    described.addProperty("text", String.valueOf(failure.getMessage()));
    described.addProperty("class", failure.getClass().getSimpleName());
    for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
      Matcher code = RESPONSE_CODE.matcher(String.valueOf(cause.getMessage()));
      if (code.find()) {
        described.addProperty("code", Integer.parseInt(code.group(1)));
        described.addProperty("text", cause.getMessage());
        described.addProperty("class", cause.getClass().getSimpleName());
      }
    }
    return described;
  }
}
