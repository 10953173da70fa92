// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"context"
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// TestKeepIdle verifies that connections used simultaneously are reused by later requests, whether
// the CA is given as a file, which client-go rereads, or as data.
func TestKeepIdle(t *testing.T) {
	const n = 40
	var opened atomic.Int64
	var arrived sync.WaitGroup
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		arrived.Done()
		arrived.Wait()
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	server.StartTLS()
	defer server.Close()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, authority, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tls := range map[string]rest.TLSClientConfig{"file": {CAFile: file}, "data": {CAData: authority}} {
		t.Run(name, func(t *testing.T) {
			config := &rest.Config{Host: server.URL, TLSClientConfig: tls, QPS: -1, Dial: (&net.Dialer{}).DialContext}
			config.NextProtos = []string{"http/1.1"}
			KeepIdle(config, n)
			client, err := kubernetes.NewForConfig(config)
			if err != nil {
				t.Fatal(err)
			}
			opened.Store(0)
			for range 3 {
				arrived.Add(n)
				var asked sync.WaitGroup
				for range n {
					asked.Go(func() {
						if err := client.CoreV1().RESTClient().Get().AbsPath("/").Do(context.Background()).Error(); err != nil {
							t.Error(err)
						}
					})
				}
				asked.Wait()
			}
			if opened := opened.Load(); opened != n {
				t.Errorf("%d connections were opened for %d requests at a time", opened, n)
			}
		})
	}
}
