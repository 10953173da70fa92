package simulate_test

import (
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/berth-k8s/berth/manifest"
	"github.com/berth-k8s/berth/simulate"
)

func TestZZ(t *testing.T) {
	f := os.Getenv("LARGE")
	if f == "" {
		return
	}
	stats := func(what string, b time.Time) {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		t.Logf("%s: %v heap %d MiB sys %d", what, time.Since(b), m.HeapAlloc>>20, m.Sys>>20)
	}
	b := time.Now()
	set, err := manifest.Read([]string{f}, nil, manifest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	stats("read", b)
	b = time.Now()
	s, err := simulate.Run(set, simulate.Options{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	stats("run", b)
	runtime.KeepAlive(s)
	runtime.KeepAlive(set)
}
