package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"

	"stratamq/load/window"
)

const (
	tableKeys       = 10_000
	tableFillers    = 64
	tableStartLimit = 30 * time.Second
	tableStartPause = 100 * time.Millisecond
)

var tableValue = bytes.Repeat([]byte{'v'}, 100)

// tableCalls says how a system's tables are asked: paths of the calls, and their requests by key.
type tableCalls struct {
	putPath, getPath string
	put, get         func(table string, key []byte) []byte
}

var tableDialects = map[string]tableCalls{
	"strata": {
		putPath: "/strata.kv.v1.KvService/Put",
		getPath: "/strata.kv.v1.KvService/Get",
		put: func(table string, key []byte) []byte {
			request := appendBytes(nil, 1, resource(table))
			return appendBytes(appendBytes(request, 2, key), 3, tableValue)
		},
		get: func(table string, key []byte) []byte {
			return appendBytes(appendBytes(nil, 1, resource(table)), 2, key)
		},
	},
	"etcd": {
		putPath: "/etcdserverpb.KV/Put",
		getPath: "/etcdserverpb.KV/Range",
		put: func(_ string, key []byte) []byte {
			return appendBytes(appendBytes(nil, 1, key), 2, tableValue)
		},
		get: func(_ string, key []byte) []byte { return appendBytes(nil, 1, key) },
	},
}

func tableKey(number int) []byte { return fmt.Appendf(nil, "key-%012d", number) }

// runTables puts every key once and then keeps a number of gets of random keys in flight; both
// systems answer a get only with what a majority agrees on.
func runTables(ctx context.Context, c *client, chosen options) (*window.Window, error) {
	calls, known := tableDialects[chosen.dialect]
	if !known {
		return nil, fmt.Errorf("unknown dialect %q", chosen.dialect)
	}
	if err := fillTable(ctx, c, chosen.topic, calls); err != nil {
		return nil, err
	}
	measured := window.New(window.Seconds(chosen.warmup))
	end := measured.Start.Add(window.Seconds(chosen.seconds))
	var workers sync.WaitGroup
	for range chosen.inFlight {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for time.Now().Before(end) {
				began := time.Now()
				request := calls.get(chosen.topic, tableKey(rand.IntN(tableKeys)))
				answer, err := c.invoke(ctx, calls.getPath, request)
				if err == nil && !bytes.Contains(answer, tableValue) {
					err = fmt.Errorf("a get gave no value")
				}
				if err != nil {
					if !measured.Fail(err) {
						return
					}
					continue
				}
				measured.Add(began, 1)
			}
		}()
	}
	time.Sleep(time.Until(end))
	measured.Close()
	workers.Wait()
	return measured, nil
}

// fillTable puts every key once, as soon as the system serves.
func fillTable(ctx context.Context, c *client, table string, calls tableCalls) error {
	limit := time.Now().Add(tableStartLimit)
	for {
		_, err := c.invoke(ctx, calls.putPath, calls.put(table, tableKey(0)))
		if err == nil {
			break
		}
		if time.Now().After(limit) {
			return err
		}
		time.Sleep(tableStartPause)
	}
	keys := make(chan int, tableKeys)
	for number := range tableKeys {
		keys <- number
	}
	close(keys)
	failures := make(chan error, tableFillers)
	for range tableFillers {
		go func() {
			for number := range keys {
				if _, err := c.invoke(ctx, calls.putPath, calls.put(table, tableKey(number))); err != nil {
					failures <- err
					return
				}
			}
			failures <- nil
		}()
	}
	var failed error
	for range tableFillers {
		if err := <-failures; err != nil {
			failed = err
		}
	}
	return failed
}

// invoke performs a unary call outside the v2 protocol: its status is gRPC's.
func (c *client) invoke(ctx context.Context, path string, request []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var answer []byte
	err := c.connection().Invoke(ctx, path, &request, &answer, grpc.WaitForReady(true))
	return answer, err
}
