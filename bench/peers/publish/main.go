// Load generator for systems that do not speak the v2 protocol: NATS JetStream and Kafka. It prints
// the report of bench/load: one JSON object, and exits 1 when nothing worked.
package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"stratamq/load/window"
)

type options struct {
	system    string
	servers   []string
	topic     string
	create    bool
	replicas  int
	queues    int
	inFlight  int
	bodyBytes int
	batch     int
	linger    time.Duration
	seconds   float64
	warmup    float64
}

// publisher sends messages and returns when all of them are acknowledged.
type publisher interface {
	create(ctx context.Context, chosen options) error
	publish(ctx context.Context, bodies [][]byte) error
	close()
}

var publishers = map[string]func(options) (publisher, error){
	"nats":  newNats,
	"kafka": newKafka,
}

// About 200 bytes that go with every message, as the properties of bench/load do.
var headers = [][2]string{
	{"trace-parent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
	{"content-type", "application/vnd.example.order+json; charset=utf-8"},
	{"tenant", "north-1"},
	{"schema", "order.created/3"},
}

const createLimit = 60 * time.Second

func main() {
	var chosen options
	var servers string
	flag.StringVar(&chosen.system, "system", "", "nats or kafka")
	flag.StringVar(&servers, "servers", "", "HOST:PORT of each server, with commas")
	flag.StringVar(&chosen.topic, "topic", "", "a topic; a stream of NATS")
	flag.BoolVar(&chosen.create, "create", false, "create the topic, and send nothing")
	flag.IntVar(&chosen.replicas, "replicas", 3, "create: replicas of a topic")
	flag.IntVar(&chosen.queues, "queues", 8, "create: partitions of a topic; NATS has none")
	flag.IntVar(&chosen.inFlight, "in-flight", 64, "requests in flight")
	flag.IntVar(&chosen.bodyBytes, "body", 1024, "body size in bytes, at least 8")
	flag.IntVar(&chosen.batch, "batch", 1, "messages that a worker sends before it waits for their acks")
	flag.DurationVar(&chosen.linger, "linger", 0, "kafka: how long the client waits for more messages")
	flag.Float64Var(&chosen.seconds, "seconds", 10, "how long to measure")
	flag.Float64Var(&chosen.warmup, "warmup", 2, "seconds before measuring")
	flag.Parse()
	chosen.servers = strings.Split(servers, ",")

	if err := run(chosen); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(chosen options) error {
	connect, known := publishers[chosen.system]
	if !known || chosen.topic == "" || chosen.bodyBytes < 8 {
		return fmt.Errorf("-system and -topic are required and -body must be at least 8")
	}
	connected, err := connect(chosen)
	if err != nil {
		return err
	}
	defer connected.close()
	if chosen.create {
		ctx, cancel := context.WithTimeout(context.Background(), createLimit)
		defer cancel()
		return connected.create(ctx, chosen)
	}
	report := send(context.Background(), connected, chosen)
	_ = json.NewEncoder(os.Stdout).Encode(report)
	if report.Messages == 0 {
		return fmt.Errorf("nothing was acknowledged: %s", report.FirstError)
	}
	return nil
}

// send keeps a number of requests in flight, each worker one after another.
func send(ctx context.Context, to publisher, chosen options) *window.Report {
	measured := window.New(window.Seconds(chosen.warmup))
	end := measured.Start.Add(window.Seconds(chosen.seconds))
	var workers sync.WaitGroup
	for range chosen.inFlight {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for time.Now().Before(end) {
				began := time.Now()
				bodies := make([][]byte, chosen.batch)
				for number := range bodies {
					bodies[number] = make([]byte, chosen.bodyBytes)
					binary.LittleEndian.PutUint64(bodies[number], uint64(began.UnixNano()))
				}
				if err := to.publish(ctx, bodies); err != nil {
					if !measured.Fail(err) {
						return
					}
					continue
				}
				measured.Add(began, chosen.batch)
			}
		}()
	}
	time.Sleep(time.Until(end))
	measured.Close()
	workers.Wait()
	return measured.Report("send")
}
