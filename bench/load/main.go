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
	"syscall"
	"time"
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
	seconds     float64
	warmup      float64
}

// report is what is printed; latencies are in milliseconds, rates per second.
type report struct {
	Mode             string  `json:"mode"`
	ElapsedS         float64 `json:"elapsed_s"`
	Requests         int     `json:"requests"`
	Messages         int     `json:"messages"`
	RequestsPerS     float64 `json:"requests_per_s"`
	MessagesPerS     float64 `json:"messages_per_s"`
	P50Ms            float64 `json:"p50_ms"`
	P99Ms            float64 `json:"p99_ms"`
	MaxMs            float64 `json:"max_ms"`
	Errors           int     `json:"errors"`
	FirstError       string  `json:"first_error,omitempty"`
	ClientCPUSeconds float64 `json:"client_cpu_s"`
	// The measured window in wall-clock time: the server's CPU is sampled by these.
	StartedAt  float64 `json:"started_at"`
	FinishedAt float64 `json:"finished_at"`
}

var modes = map[string]func(context.Context, *client, options) (*window, error){
	"send":       runSend,
	"fill":       runFill,
	"drain":      runDrain,
	"end-to-end": runEndToEnd,
}

func main() {
	var chosen options
	flag.StringVar(&chosen.endpoint, "endpoint", "127.0.0.1:8081", "HOST:PORT of a broker")
	flag.StringVar(&chosen.mode, "mode", "send", "send, fill, drain or end-to-end")
	flag.StringVar(&chosen.topic, "topic", "", "an existing topic")
	flag.StringVar(&chosen.group, "group", "load", "consumer group")
	flag.StringVar(&chosen.kind, "kind", "normal", "messages: normal, fifo, delay or transaction (a half and its commit count once)")
	flag.Float64Var(&chosen.delay, "delay", 60, "delay messages: seconds until they are due")
	flag.IntVar(&chosen.connections, "connections", 4, "HTTP/2 connections")
	flag.IntVar(&chosen.inFlight, "in-flight", 64, "requests in flight; receivers when draining")
	flag.IntVar(&chosen.bodyBytes, "body", 1024, "body size in bytes, at least 8")
	flag.IntVar(&chosen.batch, "batch", 1, "messages in one request")
	flag.IntVar(&chosen.messages, "messages", 100_000, "fill and drain: how many")
	flag.IntVar(&chosen.ackBatch, "ack-batch", 32, "drain: entries in one acknowledgement")
	flag.IntVar(&chosen.ackParallel, "ack-parallel", 8, "drain: acknowledgements in flight per receiver")
	flag.IntVar(&chosen.rate, "rate", 1000, "end-to-end: messages per second")
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

func run(chosen options) (*report, error) {
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
	return measured.report(chosen.mode), nil
}

func seconds(count float64) time.Duration { return time.Duration(count * float64(time.Second)) }

func cpuSeconds() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}
