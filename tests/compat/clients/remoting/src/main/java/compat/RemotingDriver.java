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
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;

/** Driver of the official remoting client of Java; the line protocol is in ../README.md. */
public final class RemotingDriver {
  private static final Gson GSON = new GsonBuilder().serializeNulls().create();

  private RemotingDriver() {}

  public static void main(String[] arguments) throws IOException {
    // Clients may print into the standard output; the answers alone belong there.
    PrintStream output = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    System.setOut(System.err);
    RemotingOperations operations =
        new RemotingOperations(JsonParser.parseString(arguments[0]).getAsJsonObject());
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

  private static JsonObject answer(RemotingOperations operations, JsonObject command) {
    JsonObject reply = new JsonObject();
    reply.add("id", command.get("id"));
    try {
      reply.add("result", GSON.toJsonTree(operations.run(command)));
    } catch (Throwable failure) { // whatever the client raises is what the test wants to see
      reply.add("error", describe(failure));
    }
    return reply;
  }

  private static JsonObject describe(Throwable failure) {
    JsonObject described = new JsonObject();
    Integer code = null;
    if (failure instanceof MQBrokerException) {
      code = ((MQBrokerException) failure).getResponseCode();
    } else if (failure instanceof MQClientException) {
      code = ((MQClientException) failure).getResponseCode();
    }
    described.addProperty("code", code);
    described.addProperty("text", String.valueOf(failure.getMessage()));
    described.addProperty("class", failure.getClass().getSimpleName());
    return described;
  }
}
