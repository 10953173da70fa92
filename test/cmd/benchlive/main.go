// Benchlive measures kube-scheduler and Berth against a real API server, in turn and in one run,
// and prints tables with the goals. `make bench-live` builds what it needs and runs it.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/test/bench/live"
)

func main() {
	o := live.Options{Progress: os.Stderr}
	flag.StringVar(&o.Binaries, "bin", "bin", "folder with etcd, kube-apiserver, kube-scheduler and berth-scheduler or berth")
	flag.StringVar(&o.Dir, "dir", "", "folder for etcd's data and the logs, emptied first (default: a temporary one, removed at the end)")
	flag.IntVar(&o.Nodes, "nodes", 5000, "nodes")
	flag.IntVar(&o.Pods, "pods", 10_000, "pods that wait in each mode but preemption")
	flag.IntVar(&o.Preemptors, "preemptors", 1000, "pods that wait in preemption mode")
	flag.IntVar(&o.Latency, "latency-pods", 500, "pods created one at a time; 0 to leave it out")
	flag.IntVar(&o.Startup, "startup-pods", 0,
		"in place of all else: on simulated nodes, how fast -pods are placed, and how soon this many run that follow "+
			"at 5 a second, as clusterloader2 measures it")

	flag.IntVar(&o.Gang, "gang", 0, "in place of all else: pods of a gang that has to be in one rack of a tenth as many nodes")
	flag.IntVar(&o.GangRounds, "gang-rounds", 5, "gangs of each scheduler, one after another")
	modes := flag.String("modes", "", "modes, separated by commas: "+
		strings.Join(known(live.Modes, func(m live.Mode) string { return m.Name }), ", ")+
		" (default all but those with 10,000 apps), or none")
	schedulers := flag.String("schedulers", "", "upstream or berth, to measure one alone (default both)")
	flag.BoolVar(&o.Shadow, "shadow", false,
		"have berth scheduler --shadow look on, and print how the choices compare with the best of all nodes; the "+
			"other figures then include what it takes")

	berth := flag.String("berth", "", "the command that is Berth's scheduler, in the folder of -bin (default: "+
		"berth-scheduler if it is there, else berth scheduler)")
	flag.Parse()
	o.Berth = strings.Fields(*berth)
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	if err := run(&o, *modes, *schedulers); err != nil {
		fmt.Fprintln(os.Stderr, "benchlive:", err)
		os.Exit(1)
	}
}

func run(o *live.Options, modes, schedulers string) (err error) {
	if o.Modes, err = names("-modes", modes, known(live.Modes, func(m live.Mode) string { return m.Name }, "none")); err != nil {
		return err
	}
	if o.Schedulers, err = names("-schedulers", schedulers,
		known(live.Contenders, func(c live.Contender) string { return c.Key })); err != nil {
		return err
	}
	if o.Gang != 0 && (o.Gang < 10 || o.Gang > 2*o.Nodes || o.GangRounds < 1) {
		return fmt.Errorf("-gang must be 10 at least and %d at most, twice -nodes, and -gang-rounds 1", 2*o.Nodes)
	}
	if o.Nodes < 1 || o.Pods < 2 || o.Preemptors < 2 || o.Preemptors > o.Nodes && o.Gang == 0 || o.Latency < 0 || o.Startup < 0 {
		return fmt.Errorf("-nodes must be 1 at least, -pods and -preemptors 2, -latency-pods and -startup-pods 0, and "+
			"-preemptors %d at most as -nodes", o.Preemptors)
	}
	if o.Binaries, err = filepath.Abs(o.Binaries); err != nil { // "." would have them looked for in PATH
		return err
	}
	if o.Dir == "" {
		if o.Dir, err = os.MkdirTemp("", "benchlive-"); err != nil {
			return err
		}
		defer os.RemoveAll(o.Dir)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	report, err := live.Run(ctx, *o)
	report.Write(os.Stdout)
	return err
}

func known[T any](all []T, name func(T) string, more ...string) (list []string) {
	for _, one := range all {
		list = append(list, name(one))
	}
	return append(list, more...)
}

// names splits a list and checks each name.
func names(flag, list string, known []string) ([]string, error) {
	if list == "" {
		return nil, nil
	}
	all := strings.Split(list, ",")
	for _, name := range all {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("%s: no %q; there are %s", flag, name, strings.Join(known, ", "))
		}
	}
	return all, nil
}
