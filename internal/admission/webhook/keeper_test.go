// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
)

// TestWritesWithoutEffectArePaced verifies that writes become rare if another client reverts each
// of them. The test strips the CA bundle from each written configuration, and sends an event after
// each write.
func TestWritesWithoutEffectArePaced(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		ctx, cancel := context.WithCancel(t.Context())
		var writes []time.Time
		client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
			write, ok := action.(clienttesting.UpdateAction) // or a CreateAction, with the same methods
			if !ok {
				return false, nil, nil
			}
			if config, ok := write.GetObject().(*mutating); ok {
				if writes = append(writes, time.Now()); len(writes) == 1000 {
					cancel()
				}
				for i := range config.Webhooks {
					config.Webhooks[i].ClientConfig.CABundle = nil
				}
			}
			return false, nil, nil
		})
		options := DefaultOptions()
		options.Register = true
		w := &Webhook{options: options, client: client, clock: clock.RealClock{}, metrics: newInstruments(), listener: listener,
			warm: make(chan struct{}), ready: make(chan struct{})}
		close(w.warm)
		done := make(chan struct{})
		go func() { defer close(done); w.keepCertificates(ctx) }()
		time.Sleep(10 * time.Minute) // the virtual time of the bubble
		cancel()
		<-done
		if len(writes) < 10 {
			t.Errorf("%d writes in ten minutes: the configuration is no longer corrected", len(writes))
		}
		for i := range writes {
			if i >= 20 && writes[i].Sub(writes[i-20]) < time.Minute {
				t.Fatalf("21 writes within %v", writes[i].Sub(writes[i-20]))
			}
		}
	})
}
