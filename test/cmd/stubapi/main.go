// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Stubapi is an API server for measurements of schedulers at sizes that no real API server reaches
// on the same machine. It serves HTTP/1.1 and HTTP/2 with TLS, and objects in the protobuf format:
// paged lists, watches with bookmarks, bindings, events, statuses and Leases. Nodes and pods are
// compact records; objects of realistic size are encoded for each response. Nodes send heartbeats,
// and pods are created at given rates. `make bench-scale` runs it.
package main

import (
	"encoding/pem"
	"flag"
	"fmt"
	"net"
	"net/http/httptest"
	_ "net/http/pprof"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

func main() {
	nodes := flag.Int("nodes", 10_000, "nodes")
	kubeconfig := flag.String("kubeconfig", "stub.kubeconfig", "file to write, for clients")
	flag.Parse()
	if err := run(*nodes, *kubeconfig); err != nil {
		fmt.Fprintln(os.Stderr, "stubapi:", err)
		os.Exit(1)
	}
}

func run(nodes int, kubeconfig string) error {
	s := newServer(newStore(nodes))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := httptest.NewUnstartedServer(s)
	server.Listener.Close()
	server.Listener, server.EnableHTTP2 = listener, true
	server.StartTLS()

	config := clientcmdapi.NewConfig()
	config.Clusters["stub"] = &clientcmdapi.Cluster{
		Server:                   server.URL,
		CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
	}
	config.AuthInfos["stub"] = &clientcmdapi.AuthInfo{Token: "stub"}
	config.Contexts["stub"] = &clientcmdapi.Context{Cluster: "stub", AuthInfo: "stub"}
	config.CurrentContext = "stub"
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		return err
	}
	fmt.Println("ready", server.URL)
	go s.load.run()
	end := make(chan os.Signal, 1)
	signal.Notify(end, os.Interrupt, syscall.SIGTERM)
	<-end
	fmt.Println(s.report(true))
	return nil
}

// load creates pods and heartbeats at rates.
type load struct {
	store           *store
	beats, renewals rate
}

// rate is a number of operations per second.
type rate struct {
	perSecond float64
	began     time.Time
	done      int
}

// due returns the number of operations due since the last call.
func (r *rate) due(now time.Time) int {
	n := max(0, int(now.Sub(r.began).Seconds()*r.perSecond)-r.done) // times of late ticks can go back
	r.done += n
	return n
}

// interval is the interval at which the load is generated.
const interval = 10 * time.Millisecond

// run generates the load.
func (l *load) run() {
	for now := range time.Tick(interval) {
		l.store.mu.Lock()
		from, again := l.beats.done, l.renewals.done
		beats, renewals := l.beats.due(now), l.renewals.due(now)
		l.store.mu.Unlock()
		l.store.beat(from, beats)
		l.store.renew(again, renewals)
	}
}

// begin sets the load. The parameters heartbeats and renewals set rates, and silent makes every
// n-th node silent; the others create pods.
func (l *load) begin(query url.Values) error {
	number := func(name string) float64 {
		n, _ := strconv.ParseFloat(query.Get(name), 64)
		return n
	}
	if n := int(number("silent")); n > 0 {
		l.store.silence(n)
	}
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	if query.Has("heartbeats") {
		l.beats = rate{perSecond: number("heartbeats"), began: time.Now()}
	}
	if query.Has("renewals") {
		l.renewals = rate{perSecond: number("renewals"), began: time.Now()}
	}
	if pods := int(number("pods")); pods > 0 {
		b := &batch{Name: query.Get("name"), Pods: pods, Rate: number("rate"), Spread: query.Get("spread") != ""}
		if b.Rate <= 0 {
			return fmt.Errorf("rate must be positive")
		}
		l.store.batches, l.store.waits = append(l.store.batches, b), nil
		go l.create(int32(len(l.store.batches)-1), b)
	}
	return nil
}

// create creates the pods of a batch at its rate.
func (l *load) create(number int32, b *batch) {
	r := rate{perSecond: b.Rate, began: time.Now()}
	for now := range time.Tick(interval) {
		left := b.Pods - r.done
		l.store.createPods(number, min(left, r.due(now)))
		if r.done >= b.Pods {
			return
		}
	}
}

// quantiles returns the median, p99 and maximum.
func quantiles(of []int32) (q [3]int32) {
	sorted := slices.Sorted(slices.Values(of))
	if n := len(sorted); n > 0 {
		q = [3]int32{sorted[n/2], sorted[n*99/100], sorted[n-1]}
	}
	return q
}
