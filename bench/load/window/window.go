// Package window counts what a load does in its measured time. Every load generator reports by it, so
// that figures of different systems mean the same.
package window

import (
	"sort"
	"sync"
	"syscall"
	"time"
)

const tooManyErrors = 10_000

// Report is what a load generator prints; latencies are in milliseconds, rates per second.
type Report struct {
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

// Window is the measured time: only what starts in it counts. A zero end means it is open.
type Window struct {
	Start          time.Time
	end            time.Time
	cpuAtStart     float64
	cpuUsed        float64
	mutex          sync.Mutex
	latencies      []time.Duration
	requests       int
	messages       int
	errors         int
	firstErrorText string
}

// Seconds returns so many seconds.
func Seconds(count float64) time.Duration { return time.Duration(count * float64(time.Second)) }

// New returns a window that opens after the warm-up.
func New(warmup time.Duration) *Window {
	w := &Window{Start: time.Now().Add(warmup)}
	time.AfterFunc(warmup, func() {
		w.mutex.Lock()
		defer w.mutex.Unlock()
		w.cpuAtStart = cpuSeconds()
	})
	return w
}

// Close ends the measured time.
func (w *Window) Close() {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.end = time.Now()
	w.cpuUsed = cpuSeconds() - w.cpuAtStart
}

// Add counts a request that began at a time and answered for so many messages.
func (w *Window) Add(began time.Time, messages int) {
	took := time.Since(began)
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if began.Before(w.Start) || !w.end.IsZero() {
		return
	}
	w.latencies = append(w.latencies, took)
	w.requests++
	w.messages += messages
}

// Fail counts an error, also one of the warm-up; it returns false once there are too many.
func (w *Window) Fail(err error) bool {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.errors == 0 {
		w.firstErrorText = err.Error()
	}
	w.errors++
	return w.errors < tooManyErrors
}

// Report returns what was counted.
func (w *Window) Report(mode string) *Report {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	sort.Slice(w.latencies, func(i, j int) bool { return w.latencies[i] < w.latencies[j] })
	elapsed := w.end.Sub(w.Start).Seconds()
	return &Report{
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
		StartedAt:        float64(w.Start.UnixNano()) / 1e9,
		FinishedAt:       float64(w.end.UnixNano()) / 1e9,
	}
}

// quantile returns milliseconds; the latencies are sorted.
func (w *Window) quantile(q float64) float64 {
	if len(w.latencies) == 0 {
		return 0
	}
	index := min(int(q*float64(len(w.latencies))), len(w.latencies)-1)
	return float64(w.latencies[index].Microseconds()) / 1000
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}
