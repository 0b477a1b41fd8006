package compat;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runs mqadmin, unmodified, once for each line of input: an array of arguments in, what the command
 * printed out. One process serves many commands, because a JVM takes a second to start.
 */
public final class MqAdmin {
    private MqAdmin() {
    }

    public static void main(String[] ignored) throws IOException {
        PrintStream answers = System.out;
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = lines.readLine()) != null) {
            JSONArray arguments = JSON.parseArray(line);
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream stream = new PrintStream(printed, true, StandardCharsets.UTF_8);
            System.setOut(stream);
            System.setErr(stream);
            // A command keeps what it started; each run gets new ones, as in a process of its own.
            Commands.forget();
            MQAdminStartup.main0(arguments.toArray(String[]::new), null);
            stream.flush();
            JSONObject answer = new JSONObject();
            answer.put("printed", printed.toString(StandardCharsets.UTF_8));
            answers.println(JSON.toJSONString(answer));
            answers.flush();
        }
        System.exit(0);
    }

    private static final class Commands extends MQAdminStartup {
        static void forget() {
            SUB_COMMANDS.clear();
        }
    }
}
