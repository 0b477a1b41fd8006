// Driver of the official Go client; the line protocol is in ../README.md.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

type options struct {
	Endpoint  string `json:"endpoint"`
	TLS       bool   `json:"tls"`
	Namespace string `json:"namespace"`
	AccessKey string `json:"access_key"`
	SecretKey string `json:"secret_key"`
	TimeoutMs int    `json:"timeout_ms"`
}

type command struct {
	ID            int               `json:"id"`
	Op            string            `json:"op"`
	Name          string            `json:"name"`
	Topics        []string          `json:"topics"`
	Topic         string            `json:"topic"`
	Body          []byte            `json:"body"`
	Size          int               `json:"size"`
	Tag           *string           `json:"tag"`
	Keys          []string          `json:"keys"`
	Group         *string           `json:"group"`
	Priority      *int32            `json:"priority"`
	Properties    map[string]string `json:"properties"`
	Subscriptions map[string]string `json:"subscriptions"`
	SQL           bool              `json:"sql"`
	AwaitMs       int               `json:"await_ms"`
	MaxMessages   int32             `json:"max_messages"`
	InvisibleMs   int               `json:"invisible_ms"`
	Ref           int               `json:"ref"`
	Failures      int               `json:"failures"`
	Checker       *string           `json:"checker"`
	DeliverAtMs   int64             `json:"deliver_at_ms"`
	Handle        string            `json:"handle"`
	Resolution    string            `json:"resolution"`
	Count         int               `json:"count"`
	TimeoutMs     int               `json:"timeout_ms"`
}

type failure struct {
	Code  *int32 `json:"code"`
	Text  string `json:"text"`
	Class string `json:"class"`
}

type reply struct {
	ID     int      `json:"id"`
	Result any      `json:"result,omitempty"`
	Error  *failure `json:"error,omitempty"`
}

func describe(err error) *failure {
	described := &failure{Text: err.Error(), Class: fmt.Sprintf("%T", err)}
	if status, ok := rmq.AsErrRpcStatus(err); ok {
		code := status.GetCode()
		described.Code = &code
	}
	return described
}

// run answers one command; a panic of the client is an error like any other.
func (d *driver) run(c command) (answer reply) {
	answer.ID = c.ID
	defer func() {
		if cause := recover(); cause != nil {
			answer.Error = &failure{Text: fmt.Sprint(cause), Class: "panic"}
		}
	}()
	operation, known := operations[c.Op]
	if !known {
		answer.Error = &failure{Text: "unknown op " + c.Op, Class: "driver"}
		return answer
	}
	result, err := operation(d, c)
	if err != nil {
		answer.Error = describe(err)
		return answer
	}
	answer.Result = result
	return answer
}

func milliseconds(count int) time.Duration { return time.Duration(count) * time.Millisecond }

func main() {
	var chosen options
	if err := json.Unmarshal([]byte(os.Args[1]), &chosen); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	rmq.EnableSsl = chosen.TLS
	d := newDriver(chosen)

	var output sync.Mutex
	encoder := json.NewEncoder(os.Stdout)
	input := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := input.ReadBytes('\n')
		if err != nil {
			return
		}
		var c command
		if err := json.Unmarshal(line, &c); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		go func() {
			answer := d.run(c)
			output.Lock()
			defer output.Unlock()
			_ = encoder.Encode(answer)
		}()
	}
}
