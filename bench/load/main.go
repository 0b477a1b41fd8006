// Load generator over the v2 protocol. It prints one JSON object and exits 1 when nothing worked.
//
// Messages are encoded by hand and answers are read only as far as needed, so that the client takes
// as little as possible of the machine it shares with the server.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"

	"stratamq/load/window"
)

type options struct {
	endpoint    string
	mode        string
	topic       string
	group       string
	kind        string
	delay       float64
	connections int
	inFlight    int
	bodyBytes   int
	batch       int
	messages    int
	ackBatch    int
	ackParallel int
	rate        int
	receivers   int
	dialect     string
	seconds     float64
	warmup      float64
}

var modes = map[string]func(context.Context, *client, options) (*window.Window, error){
	"send":       runSend,
	"fill":       runFill,
	"drain":      runDrain,
	"end-to-end": runEndToEnd,
	"waits":      runWaits,
	"table-get":  runTables,
}

func main() {
	var chosen options
	flag.StringVar(&chosen.endpoint, "endpoint", "127.0.0.1:8081", "HOST:PORT of a broker")
	flag.StringVar(&chosen.mode, "mode", "send", "send, fill, drain, end-to-end, waits or table-get")
	flag.StringVar(&chosen.topic, "topic", "", "an existing topic; a table")
	flag.StringVar(&chosen.group, "group", "load", "consumer group")
	flag.StringVar(&chosen.kind, "kind", "normal", "messages: normal, fifo, delay or transaction (a half and its commit count once)")
	flag.Float64Var(&chosen.delay, "delay", 60, "delay messages: seconds until they are due")
	flag.IntVar(&chosen.connections, "connections", 4, "HTTP/2 connections")
	flag.IntVar(&chosen.inFlight, "in-flight", 64, "requests in flight; receivers when draining, consumers that wait")
	flag.IntVar(&chosen.bodyBytes, "body", 1024, "body size in bytes, at least 8")
	flag.IntVar(&chosen.batch, "batch", 1, "messages in one request")
	flag.IntVar(&chosen.messages, "messages", 100_000, "fill and drain: how many")
	flag.IntVar(&chosen.ackBatch, "ack-batch", 32, "drain: entries in one acknowledgement")
	flag.IntVar(&chosen.ackParallel, "ack-parallel", 8, "drain: acknowledgements in flight per receiver")
	flag.IntVar(&chosen.rate, "rate", 1000, "end-to-end and waits: messages per second")
	flag.StringVar(&chosen.dialect, "dialect", "strata", "table-get: strata or etcd")
	flag.IntVar(&chosen.receivers, "receivers", 0, "end-to-end: receives in flight; 0: four for each broker name")
	flag.Float64Var(&chosen.seconds, "seconds", 10, "how long to measure; the most a drain may take")
	flag.Float64Var(&chosen.warmup, "warmup", 2, "seconds before measuring")
	flag.Parse()

	printed, err := run(chosen)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_ = json.NewEncoder(os.Stdout).Encode(printed)
	if printed.Messages == 0 {
		os.Exit(1)
	}
}

func run(chosen options) (*window.Report, error) {
	mode, known := modes[chosen.mode]
	if !known {
		return nil, fmt.Errorf("unknown mode %q", chosen.mode)
	}
	if chosen.topic == "" || chosen.bodyBytes < 8 {
		return nil, fmt.Errorf("-topic is required and -body must be at least 8")
	}
	if _, known := messageTypes[chosen.kind]; !known {
		return nil, fmt.Errorf("unknown kind %q", chosen.kind)
	}
	connected, err := connect(chosen)
	if err != nil {
		return nil, err
	}
	defer connected.close()
	measured, err := mode(context.Background(), connected, chosen)
	if err != nil {
		return nil, err
	}
	return measured.Report(chosen.mode), nil
}
