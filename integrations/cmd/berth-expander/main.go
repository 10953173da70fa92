// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Command berth-expander is an expander for --expander=grpc of the cluster autoscaler. It queries a
// query service of Berth.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/pflag"

	"github.com/berth-k8s/berth/integrations/expander"
	"github.com/berth-k8s/berth/integrations/grpcplugin"
	"github.com/berth-k8s/berth/integrations/serveflags"
	"github.com/berth-k8s/berth/internal/kube/certfile"
	"github.com/berth-k8s/berth/internal/kube/signals"
)

// mostRequest bounds a request in bytes. The autoscaler sends each pod once per option.
const mostRequest = 256 << 20

// grace is the time for questions to complete after a signal.
const grace = 5 * time.Second

// options are the flags.
type options struct {
	expander        expander.Options
	berth           serveflags.Flags
	address, health string
	cert, key       string
}

// newFlags returns the flags with their defaults, and where they are stored.
func newFlags() (*pflag.FlagSet, *options) {
	o := &options{expander: expander.Defaults()}
	o.berth.TokenFile = "/var/run/secrets/kubernetes.io/serviceaccount/token"
	flags := pflag.NewFlagSet("berth-expander", pflag.ContinueOnError)
	flags.StringVar(&o.address, "address", "127.0.0.1:8425", "address for the autoscaler's --grpc-expander-url")
	flags.StringVar(&o.cert, "tls-cert-file", "",
		"certificate, whose CA is the autoscaler's --grpc-expander-cert, reloaded when it changes; without it, "+
			"--address must be a loopback address, and TLS is off")
	flags.StringVar(&o.key, "tls-private-key-file", "", "key of --tls-cert-file")
	flags.StringVar(&o.health, "health-address", "127.0.0.1:8426", "address of /healthz, /readyz and /metrics, over HTTP")
	o.berth.AddFlags(flags, "file with the token for berth serve")
	flags.StringVar(&o.expander.PriceFile, "prices", "",
		"YAML file with the hourly prices of a node under nodeGroups, by name, or under instanceTypes; read for each scale-up")
	flags.DurationVar(&o.expander.Timeout, "timeout", o.expander.Timeout,
		"longest time of a choice; the autoscaler waits for 5 s")
	flags.IntVar(&o.expander.Parallel, "parallel", o.expander.Parallel, "maximum number of concurrent questions to berth serve")
	return flags, o
}

func main() {
	flags, o := newFlags()
	err := flags.Parse(os.Args[1:])
	if errors.Is(err, pflag.ErrHelp) {
		return
	}
	if err == nil {
		err = run(o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "berth-expander:", err)
		os.Exit(1)
	}
}

// run serves until a signal arrives or a listener fails.
func run(o *options) error {
	ctx, end := signals.Until(context.Background())
	defer end()
	s, err := newServer(o)
	if err != nil {
		return err
	}
	return s.serve(ctx)
}

// server serves the autoscaler, and probes.
type server struct {
	answers, status net.Listener
	service, health http.Handler
}

// newServer opens the listeners.
func newServer(o *options) (*server, error) {
	berth, err := o.berth.Client()
	if err != nil {
		return nil, err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	e, err := expander.New(berth, registry, o.expander)
	if err != nil {
		return nil, err
	}
	s := &server{}
	_, s.service = grpcplugin.NewExpanderHandler(e, connect.WithReadMaxBytes(mostRequest))
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/readyz", func(http.ResponseWriter, *http.Request) {}) // without berth serve, it returns all options
	s.health = mux
	if s.answers, err = o.listen(); err != nil {
		return nil, err
	}
	if s.status, err = net.Listen("tcp", o.health); err != nil {
		return nil, errors.Join(err, s.answers.Close())
	}
	return s, nil
}

// serve runs until the context ends or a listener fails, and closes the listeners.
func (s *server) serve(ctx context.Context) error {
	var protocols http.Protocols
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	health := &http.Server{Handler: s.health, ReadHeaderTimeout: 10 * time.Second}
	server := &http.Server{Handler: s.service, Protocols: &protocols, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 2)
	go func() { ended <- health.Serve(s.status) }()
	go func() { ended <- server.Serve(s.answers) }()
	defer health.Close()
	select {
	case err := <-ended:
		return errors.Join(err, server.Close())
	case <-ctx.Done():
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if err := server.Shutdown(limited); err != nil {
		return errors.Join(err, server.Close())
	}
	return nil
}

// listen opens the listener for the autoscaler.
func (o *options) listen() (net.Listener, error) {
	if (o.cert == "") != (o.key == "") {
		return nil, errors.New("--tls-cert-file and --tls-private-key-file: must be given together")
	}
	plain, err := net.Listen("tcp", o.address)
	if err != nil {
		return nil, err
	}
	if o.cert == "" {
		if at, ok := plain.Addr().(*net.TCPAddr); !ok || !at.IP.IsLoopback() {
			_ = plain.Close()
			return nil, fmt.Errorf("--address %s: an address that is not of the loopback requires --tls-cert-file", o.address)
		}
		return plain, nil
	}
	encrypted, err := o.encrypt(plain)
	if err != nil {
		_ = plain.Close()
		return nil, fmt.Errorf("--tls-cert-file: %w", err)
	}
	return encrypted, nil
}

// encrypt adds TLS with the certificate of the files to a listener.
func (o *options) encrypt(plain net.Listener) (net.Listener, error) {
	files, err := certfile.Read(o.cert, o.key)
	if err != nil {
		return nil, err
	}
	return tls.NewListener(plain, &tls.Config{
		MinVersion: tls.VersionTLS12, GetCertificate: files.Newest, NextProtos: []string{"h2"},
	}), nil
}
