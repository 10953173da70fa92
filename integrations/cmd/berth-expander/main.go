// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Command berth-expander is an expander for --expander=grpc of the cluster autoscaler, which asks a
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

	"github.com/berth-k8s/berth/client"
	"github.com/berth-k8s/berth/integrations/expander"
	"github.com/berth-k8s/berth/integrations/grpcplugin"
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
	berth           client.Options
	url, ca         string
	address, health string
	cert, key       string
}

func main() {
	o := options{expander: expander.Defaults()}
	flags := pflag.NewFlagSet("berth-expander", pflag.ContinueOnError)
	flags.StringVar(&o.address, "address", "127.0.0.1:8425", "address for the autoscaler's --grpc-expander-url")
	flags.StringVar(&o.cert, "tls-cert-file", "",
		"certificate, whose CA is the autoscaler's --grpc-expander-cert, reloaded when it changes; without it, "+
			"--address must be a loopback address, and TLS is off")
	flags.StringVar(&o.key, "tls-private-key-file", "", "key of --tls-cert-file")
	flags.StringVar(&o.health, "health-address", "127.0.0.1:8426", "address of /healthz, /readyz and /metrics, over HTTP")
	flags.StringVar(&o.url, "berth-url", "https://127.0.0.1:8423", "address of berth serve")
	flags.StringVar(&o.berth.TokenFile, "berth-token-file", "/var/run/secrets/kubernetes.io/serviceaccount/token",
		"file with the token for berth serve")
	flags.StringVar(&o.ca, "berth-ca-file", "", "file with the CA of berth serve; by default, the CAs of the system")
	flags.BoolVar(&o.berth.Insecure, "berth-insecure", false, "do not verify the certificate of berth serve")
	flags.StringVar(&o.expander.PriceFile, "prices", "",
		"YAML file with the hourly prices of a node under nodeGroups, by name, or under instanceTypes; read for each scale-up")
	flags.DurationVar(&o.expander.Timeout, "timeout", o.expander.Timeout,
		"longest time of a choice; the autoscaler waits for 5 s")
	err := flags.Parse(os.Args[1:])
	if errors.Is(err, pflag.ErrHelp) {
		return
	}
	if err == nil {
		err = run(&o)
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
	if o.ca != "" {
		var err error
		if o.berth.CA, err = os.ReadFile(o.ca); err != nil {
			return err
		}
	}
	berth, err := client.New(o.url, o.berth)
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	e, err := expander.New(berth, registry, o.expander)
	if err != nil {
		return err
	}
	answers, err := o.listen()
	if err != nil {
		return err
	}
	defer answers.Close()
	status, err := net.Listen("tcp", o.health)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/readyz", func(http.ResponseWriter, *http.Request) {}) // without berth serve, it returns all options
	_, service := grpcplugin.NewExpanderHandler(e, connect.WithReadMaxBytes(mostRequest))
	var protocols http.Protocols
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	health := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	server := &http.Server{Handler: service, Protocols: &protocols, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 2)
	go func() { ended <- health.Serve(status) }()
	go func() { ended <- server.Serve(answers) }()
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
	files, err := certfile.Read(o.cert, o.key)
	if err != nil {
		_ = plain.Close()
		return nil, fmt.Errorf("--tls-cert-file: %w", err)
	}
	return tls.NewListener(plain, &tls.Config{
		MinVersion: tls.VersionTLS12, GetCertificate: files.Newest, NextProtos: []string{"h2"},
	}), nil
}
