// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Command berth-kueue decides the admission checks of Kueue with the controller name
// berth.dev/places, by asking a query service of Berth.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/kueue/client-go/clientset/versioned"

	"github.com/berth-k8s/berth/integrations/kueuecheck"
	"github.com/berth-k8s/berth/integrations/serveflags"
	"github.com/berth-k8s/berth/internal/kube/connect"
	"github.com/berth-k8s/berth/internal/kube/lead"
	"github.com/berth-k8s/berth/internal/kube/signals"
)

// options are the flags.
type options struct {
	cluster    connect.Flags
	election   lead.Options
	controller kueuecheck.Options
	berth      serveflags.Flags
	address    string
}

// newFlags returns the flags with their defaults, and where they are stored.
func newFlags() (*pflag.FlagSet, *options) {
	o := &options{election: lead.Defaults("berth-kueue"), controller: kueuecheck.Defaults()}
	flags := pflag.NewFlagSet("berth-kueue", pflag.ContinueOnError)
	o.cluster.AddFlags(flags)
	o.election.AddFlags(flags)
	o.berth.AddFlags(flags, "file with the token for berth serve; by default, the token for the API server")
	flags.StringVar(&o.address, "health-address", "127.0.0.1:8424", "address of /healthz, /readyz and /metrics, over HTTP")
	flags.DurationVar(&o.controller.Hold, "hold", o.controller.Hold, "longest time that the places of a Ready workload are reserved")
	flags.DurationVar(&o.controller.Patience, "patience", o.controller.Patience,
		"time that a workload without places keeps its quota and waits for room, before it retries")
	flags.DurationVar(&o.controller.RetryLeast, "retry-min", o.controller.RetryLeast,
		"delay of the first retry of a workload; doubles with each one")
	flags.DurationVar(&o.controller.RetryMost, "retry-max", o.controller.RetryMost, "longest delay of a retry")
	flags.Float64Var(&o.controller.Rate, "questions-per-second", o.controller.Rate, "limit on questions to berth serve")
	flags.DurationVar(&o.controller.Timeout, "question-timeout", o.controller.Timeout, "longest time of a question")
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
		fmt.Fprintln(os.Stderr, "berth-kueue:", err)
		os.Exit(1)
	}
}

// run decides until a signal arrives or the leadership is lost.
func run(o *options) error {
	ctx, end := signals.Until(context.Background())
	defer end()
	config, err := o.cluster.Config("berth-kueue")
	if err != nil {
		return err
	}
	if o.berth.TokenFile = cmp.Or(o.berth.TokenFile, config.BearerTokenFile); o.berth.TokenFile == "" {
		o.berth.Token = config.BearerToken
	}
	berth, err := o.berth.Client()
	if err != nil {
		return err
	}
	elector, err := lead.New(config, o.election, nil)
	if err != nil {
		return err
	}
	lead.Guard(config, elector.Over)
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	clientset, err := versioned.NewForConfig(config)
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	controller, err := kueuecheck.New(clientset, core, berth, registry, o.controller)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("/readyz", func(http.ResponseWriter, *http.Request) {}) // a replica that waits for the Lease is ready
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) {
		if err := elector.Alive(r); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	server := &http.Server{Addr: o.address, Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.ListenAndServe() }()
	defer server.Close()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			stop(err)
		}
	}()
	if err := elector.Run(ctx, controller.Run); err != nil {
		return err
	}
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
