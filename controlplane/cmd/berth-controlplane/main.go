// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// berth-controlplane runs etcd, the Kubernetes API server and the workload controllers in one
// process.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/controlplane"
)

func main() { os.Exit(run(os.Args[1:])) }

// run reads the flags and runs the control plane. It returns the exit code: 2 for a mistake in the
// flags, 1 for a failure, each with one line on standard error. It is stateless, so that tests can
// call it.
func run(args []string) int {
	o := controlplane.Options{RuntimeConfig: map[string]string{}} // the flag writes into the map
	flags := pflag.NewFlagSet("berth-controlplane", pflag.ContinueOnError)
	flags.SortFlags = false
	// An error is one line; print the usage for --help only.
	flags.Usage = func() {}
	flags.StringVar(&o.DataDir, "data-dir", ".berth", "where all state is kept; the kubeconfig is written into it")
	flags.IntVar(&o.Port, "port", 0, "port of the API on 127.0.0.1; 0: the one used last with this data directory, or a free one")
	flags.Var(cliflag.NewMapStringBool(&o.FeatureGates), "feature-gates", "Kubernetes feature gates, as Name=true,Other=false")
	flags.Var((*cliflag.ConfigurationMap)(&o.RuntimeConfig), "runtime-config", "API groups and versions to enable or disable, such as "+
		"api/alpha=true")
	flags.StringSliceVar(&o.Controllers, "controllers", []string{"*"},
		"controllers to run: * for the default ones, name to add one, -name to leave one out")
	flags.StringVar(&o.ServiceClusterIPRange, "service-cluster-ip-range", "10.96.0.0/12", "where Services get their addresses")
	flags.StringSliceVar(&o.TLSNames, "tls-san", nil, "names and addresses that the API's certificate is for, besides this machine's own")
	flags.DurationVar(&o.EventTTL, "event-ttl", 0, "how long Events are kept (default 1h0m0s)")
	flags.DurationVar(&o.EtcdCompaction, "etcd-compaction-interval", 0, "interval between compactions of etcd (default 5m0s)")
	notReady := flags.Int64("default-not-ready-toleration-seconds", 300, "tolerationSeconds for not-ready nodes of pods that set none")
	unreachable := flags.Int64("default-unreachable-toleration-seconds", 300,
		"tolerationSeconds for unreachable nodes of pods that set none")
	flags.BoolVar(&o.UpstreamAdmission, "upstream-admission", false,
		"disable Berth's admission rules, and use Kubernetes' own plugins instead")
	flags.StringSliceVar(&o.EnableAdmission, "enable-admission-plugins", nil,
		"admission plugins of Kubernetes to run besides those that are on by default")
	flags.StringSliceVar(&o.DisableAdmission, "disable-admission-plugins", nil, "admission plugins of Kubernetes to leave out")
	flags.BoolVar(&o.NodeBootstrap, "node-bootstrap", false,
		"write <data-dir>/node-bootstrap.kubeconfig, with which a machine can join as a node (berth agent --bootstrap-kubeconfig); "+
			"valid for a day")
	flags.BoolVar(&o.GuardEvictions, "guard-evictions", false,
		"grant Berth's controller the permissions to guard evictions, and write <data-dir>/webhook.kubeconfig for its webhook")
	flags.BoolVar(&o.Profiling, "profiling", false, "serve /debug/pprof")
	flags.IntVarP(&o.Verbosity, "v", "v", 0, "verbosity of the log")
	memory := flags.String("memory-limit", "",
		"end with an error once this much memory is in use, such as 4Gi (default GOMEMLIMIT if that is set, else three quarters of the "+
			"machine's, and 8Gi at most)")
	logToStderr := flags.Bool("log-to-stderr", false, "log to standard error instead of <data-dir>/controlplane.log")
	version := flags.Bool("version", false, "print the version of Kubernetes and end")
	switch err := flags.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Printf("berth-controlplane runs etcd, the Kubernetes API server and the workload controllers in one "+
			"process.\n\nFlags:\n%s", flags.FlagUsages())
		return 0
	case err != nil:
		return fail(2, err)
	case flags.NArg() > 0:
		return fail(2, fmt.Errorf("%q: takes flags only; see --help", flags.Arg(0)))
	case *version:
		fmt.Println("Kubernetes", controlplane.KubernetesVersion)
		return 0
	}
	// The values are valid only after Parse.
	o.Rules.NotReadySeconds, o.Rules.UnreachableSeconds = notReady, unreachable
	// Report wrong flags before anything is started.
	limit, err := memoryLimit(*memory)
	if err == nil {
		err = o.Validate()
	}
	if err != nil {
		return fail(2, err)
	}
	// The flag -v implies logging to standard error.
	if *logToStderr || flags.Changed("v") {
		o.LogTo = os.Stderr
	} else {
		muteLogs()
	}
	return serve(o, limit)
}

// muteLogs silences components that still log after the control plane and its log have ended, so
// that an error stays one line. Fatal messages still go to standard error.
func muteLogs() {
	flags := flag.NewFlagSet("klog", flag.PanicOnError)
	klog.InitFlags(flags)
	for name, value := range map[string]string{"logtostderr": "false", "stderrthreshold": "FATAL"} {
		if err := flags.Set(name, value); err != nil {
			panic(err) // the names and values are klog's own
		}
	}
	klog.SetOutput(io.Discard)
}

// stopLimit bounds the shutdown after a signal.
const stopLimit = 4 * time.Second

// serve runs until SIGTERM or SIGINT. A second signal ends the process immediately. The exit code
// after a signal is 0, unless the shutdown takes longer than stopLimit.
func serve(o controlplane.Options, memory int64) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	// End the whole process: acknowledged writes are on disk, and a supervisor restarts it.
	go watchMemory(ctx, memory, func(err error) { os.Exit(fail(1, err)) })
	progress := &progress{Writer: os.Stdout}
	forget := context.AfterFunc(ctx, func() {
		// Restore the default handling, so that a second signal ends the process.
		stop()
		if !progress.complete.Load() {
			// The control plane is not in use yet, and its state survives an end of the process at
			// any moment.
			os.Exit(0)
		}
		time.AfterFunc(stopLimit, func() {
			os.Exit(fail(1, fmt.Errorf("did not stop within %v: exiting anyway; acknowledged writes are on disk", stopLimit)))
		})
	})
	defer forget() // otherwise stop, which ends ctx, would be mistaken for a signal
	if err := controlplane.Run(ctx, o, progress); err != nil {
		return fail(1, err)
	}
	return 0
}

// progress forwards lines and detects the last one. The control plane writes whole lines.
type progress struct {
	io.Writer
	complete atomic.Bool
}

func (p *progress) Write(line []byte) (int, error) {
	if bytes.HasPrefix(line, []byte("ready ")) {
		p.complete.Store(true)
	}
	return p.Writer.Write(line)
}

// fail prints the error and returns code.
func fail(code int, err error) int {
	fmt.Fprintln(os.Stderr, "berth-controlplane:", err)
	return code
}
