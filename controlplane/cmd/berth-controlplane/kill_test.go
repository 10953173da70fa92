// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// acknowledged holds the objects acknowledged by the API, with their content.
type acknowledged struct {
	mu      sync.Mutex
	content map[string]string
}

func (a *acknowledged) snapshot() map[string]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.content)
}

// write creates ConfigMaps one after the other until ctx ends, with or without a running server.
func (a *acknowledged) write(ctx context.Context, c kubernetes.Interface, writer int) {
	for i := 0; ctx.Err() == nil; i++ {
		name, content := fmt.Sprintf("writer-%d-%d", writer, i), fmt.Sprint(rand.Uint64())
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"content": content}}
		if _, err := c.CoreV1().ConfigMaps("default").Create(ctx, object, metav1.CreateOptions{}); err == nil {
			a.mu.Lock()
			a.content[name] = content
			a.mu.Unlock()
			continue
		}
		// An unacknowledged object may or may not exist; continue with the next one.
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (a *acknowledged) verify(t *testing.T, c kubernetes.Interface, want map[string]string) {
	t.Helper()
	list, err := c.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]string, len(list.Items))
	for _, item := range list.Items {
		found[item.Name] = item.Data["content"]
	}
	for name, content := range want {
		if got, there := found[name]; !there || got != content {
			t.Errorf("%s: acknowledged with %q, is %q (there: %t)", name, content, got, there)
		}
	}
}

func TestKilledAtAnyMomentNothingAcknowledgedIsLost(t *testing.T) {
	const writers = 8
	dir := t.TempDir()
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)

	// The first kills hit a directory under construction.
	for range 6 {
		p := start(t, "--data-dir", dir)
		eventually(t, func(context.Context) error { return holds(dir, p.cmd.Process.Pid) })
		expire(p.ended, time.Duration(random.Int64N(int64(150*time.Millisecond))))
		p.kill()
	}
	p := start(t, "--data-dir", dir)
	p.waitReady(t)

	known := &acknowledged{content: map[string]string{}}
	ctx, cancel := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	defer writing.Wait()
	defer cancel()
	for w := range writers {
		c := client(t, dir)
		writing.Go(func() { known.write(ctx, c, w) })
	}
	inStart, slowest := 0, time.Duration(0)
	for range *kills {
		expire(p.ended, time.Duration(random.Int64N(int64(500*time.Millisecond))))
		p.kill()
		if random.IntN(3) == 0 {
			inStart++
			p = start(t, "--data-dir", dir)
			expire(p.ready, time.Duration(random.Int64N(int64(time.Second))))
			p.kill()
		}
		before := known.snapshot()
		began := time.Now()
		p = start(t, "--data-dir", dir)
		p.waitReady(t)
		slowest = max(slowest, time.Since(began))
		known.verify(t, client(t, dir), before)
	}
	cancel()
	writing.Wait()
	total := known.snapshot()
	known.verify(t, client(t, dir), total)
	t.Logf("%d kills of a running one, %d more during its start, %d objects acknowledged, slowest start %v",
		*kills, inStart+6, len(total), slowest)
	if len(total) < *kills*writers {
		t.Errorf("only %d objects were acknowledged in all: the test shows nothing", len(total))
	}
}

// expire returns after d, or when done is closed.
func expire(done <-chan struct{}, d time.Duration) {
	select {
	case <-done:
	case <-time.After(d):
	}
}
