package main

import (
	"sort"
	"sync"
	"time"
)

// window is the measured time: only what starts in it counts. A zero end means it is open.
type window struct {
	start, end     time.Time
	cpuAtStart     float64
	cpuUsed        float64
	mutex          sync.Mutex
	latencies      []time.Duration
	requests       int
	messages       int
	errors         int
	firstErrorText string
}

// newWindow returns a window that opens after the warm-up; opened is called at that moment.
func newWindow(warmup time.Duration) *window {
	w := &window{start: time.Now().Add(warmup)}
	time.AfterFunc(warmup, func() {
		w.mutex.Lock()
		defer w.mutex.Unlock()
		w.cpuAtStart = cpuSeconds()
	})
	return w
}

// close ends the measured time.
func (w *window) close() {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.end = time.Now()
	w.cpuUsed = cpuSeconds() - w.cpuAtStart
}

// add counts a request that began at a time and answered for so many messages.
func (w *window) add(began time.Time, messages int) {
	took := time.Since(began)
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if began.Before(w.start) || !w.end.IsZero() {
		return
	}
	w.latencies = append(w.latencies, took)
	w.requests++
	w.messages += messages
}

// fail counts an error, also one of the warm-up; it returns false once there are too many.
func (w *window) fail(err error) bool {
	const tooMany = 10_000
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.errors == 0 {
		w.firstErrorText = err.Error()
	}
	w.errors++
	return w.errors < tooMany
}

func (w *window) report(mode string) *report {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	sort.Slice(w.latencies, func(i, j int) bool { return w.latencies[i] < w.latencies[j] })
	elapsed := w.end.Sub(w.start).Seconds()
	return &report{
		Mode:             mode,
		ElapsedS:         elapsed,
		Requests:         w.requests,
		Messages:         w.messages,
		RequestsPerS:     float64(w.requests) / elapsed,
		MessagesPerS:     float64(w.messages) / elapsed,
		P50Ms:            w.quantile(0.50),
		P99Ms:            w.quantile(0.99),
		MaxMs:            w.quantile(1),
		Errors:           w.errors,
		FirstError:       w.firstErrorText,
		ClientCPUSeconds: w.cpuUsed,
		StartedAt:        float64(w.start.UnixNano()) / 1e9,
		FinishedAt:       float64(w.end.UnixNano()) / 1e9,
	}
}

// quantile returns milliseconds; the latencies are sorted.
func (w *window) quantile(q float64) float64 {
	if len(w.latencies) == 0 {
		return 0
	}
	index := min(int(q*float64(len(w.latencies))), len(w.latencies)-1)
	return float64(w.latencies[index].Microseconds()) / 1000
}
