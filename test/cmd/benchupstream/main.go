// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// benchupstream runs upstream's own benchmark, scheduler_perf with its unmodified workload files,
// alternately with kube-scheduler and with Berth replacing it, and prints one table. The API server
// and the client run in the scheduler's process, so the CPU time covers all three.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/berth-k8s/berth/test/bench/driver"
	"github.com/berth-k8s/berth/test/inplace/build"
)

// workloads lists the workloads run by default, in the form PACKAGE BENCHMARK/WORKLOAD.
var workloads = []string{
	"misc SchedulingBasic/5000Nodes_10000Pods", "misc SchedulingDaemonset/15000Nodes", "default_preemption PreemptionBasic/1000Nodes",
	"default_preemption Unschedulable/5kNodes/100Init/1kPods", "misc SchedulingWhileGated/1Node_10000GatedPods",
	"affinity SchedulingPodAntiAffinity/5000Nodes_2000Pods", "affinity SchedulingPodAffinity/5000Nodes_5000Pods",
	"topology_spreading TopologySpreading/5000Nodes_5000Pods", "volumes SchedulingCSIPVs/5000Nodes_5000Pods",
	"volumes SchedulingMigratedInTreePVs/5000Nodes_5000Pods",
	"dra SchedulingWithResourceClaimTemplate/2000pods_200nodes", "dra SchedulingWithResourceClaim/2000pods_200nodes",
}

func main() {
	only := flag.String("workloads", strings.Join(workloads, ","), "which, with commas between: PACKAGE BENCHMARK/WORKLOAD")
	labels := flag.String("labels", "", "labels that a workload must have, as upstream's -perf-scheduling-label-filter")
	times := flag.Int("times", 3, "how often each; the median counts")
	driver.Main("benchupstream", "About an hour on two processors.", func(ctx context.Context) error {
		return run(ctx, strings.Split(*only, ","), *labels, *times, os.Stdout)
	})
}

// figure is the result of one run of a workload.
type figure struct {
	rate float64 // pods a second, on average
	cpu  float64 // seconds
	peak float64 // MiB
}

func run(ctx context.Context, workloads []string, labels string, times int, out io.Writer) error {
	work, err := os.MkdirTemp("", "berth-benchupstream-")
	if err != nil {
		return err
	}

	defer os.RemoveAll(work)
	builder, err := build.New(ctx, work)
	if err != nil {
		return err
	}

	files := map[string][2]string{}
	fmt.Fprintf(out, "| workload | kube-scheduler | Berth | rate | CPU | memory |\n| --- | --- | --- | --- | --- | --- |\n")
	failed := 0
	for _, workload := range workloads {
		name, benchmark, _ := strings.Cut(workload, " ")
		if _, made := files[name]; !made {
			file, folder, err := builder.Tests(ctx, "scheduler_perf/"+name)
			if err != nil {
				return err
			}
			files[name] = [2]string{file, folder}
		}
		theirs, ours, err := both(ctx, builder, files[name], benchmark, labels, times)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "benchupstream: %s: %v\n", workload, err)
			failed++
			continue
		}
		fmt.Fprintln(out, line(benchmark, theirs, ours))
	}

	if failed > 0 {
		return fmt.Errorf("workloads that failed: %d", failed)
	}
	return nil
}

// both runs a workload the given number of times with each scheduler, alternating.
func both(ctx context.Context, builder *build.Builder, file [2]string, benchmark, labels string, times int) (theirs,
	ours figure, err error) {
	var figures [2][]figure
	for range times {
		for side, inPlace := range []string{"no", ""} {
			f, err := one(ctx, builder, file, benchmark, labels, inPlace)
			if err != nil {
				return theirs, ours, fmt.Errorf("with %s: %w", [...]string{"kube-scheduler", "Berth"}[side], err)
			}
			figures[side] = append(figures[side], f)
		}
	}
	return median(figures[0]), median(figures[1]), nil
}

// one runs a workload once.
func one(ctx context.Context, builder *build.Builder, file [2]string, benchmark, labels, inPlace string) (f figure, err error) {
	pattern := "^BenchmarkPerfScheduling$"
	for _, part := range strings.Split(benchmark, "/") {
		pattern += "/^" + regexp.QuoteMeta(part) + "$"
	}

	cmd := exec.CommandContext(ctx, file[0], "-test.run=^$", "-test.benchtime=1ns", "-test.bench="+pattern,
		"-perf-scheduling-label-filter="+labels, "-test.timeout=30m")
	var buf bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = file[1], &buf, &buf
	cmd.Env = append(os.Environ(), builder.Environment(inPlace)...)
	cmd.Env = append(cmd.Env, "TMPDIR="+filepath.Dir(file[0]))
	failure := cmd.Run()
	if f.rate, err = throughput(buf.String()); err != nil {
		return f, errors.Join(failure, err)
	}

	f.cpu = (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
	if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		f.peak = float64(usage.Maxrss) / 1024
	}
	return f, nil
}

// reported and tooLow match the rate of a workload. With a rate below upstream's own threshold, the
// workload fails; its rate still counts, because the failure reveals more about the machine than
// about the scheduler.
var (
	reported = regexp.MustCompile(`([0-9.e+]+) SchedulingThroughput/Average`)
	tooLow   = regexp.MustCompile(`expected "SchedulingThroughput" "Average" to be higher: got ([0-9.e+]+), want`)
)

func throughput(text string) (float64, error) {
	m := reported.FindStringSubmatch(text)
	if m == nil {
		m = tooLow.FindStringSubmatch(text)
	}
	if m == nil {
		return 0, fmt.Errorf("no throughput is reported: is there such a workload, and has it the labels?\n%s",
			text[max(0, len(text)-2000):])
	}
	return strconv.ParseFloat(m[1], 64)
}

func median(all []figure) (m figure) {
	of := func(value func(figure) float64) float64 {
		values := make([]float64, len(all))
		for i := range all {
			values[i] = value(all[i])
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	return figure{of(func(f figure) float64 { return f.rate }), of(func(f figure) float64 { return f.cpu }),
		of(func(f figure) float64 { return f.peak })}
}

func line(name string, theirs, ours figure) string {
	return fmt.Sprintf("| %s | %.0f pods/s, %.0f s, %.0f MiB | %.0f pods/s, %.0f s, %.0f MiB | %.2f | %.2f | %.2f |", name,
		theirs.rate, theirs.cpu, theirs.peak, ours.rate, ours.cpu, ours.peak, ours.rate/theirs.rate,
		ours.cpu/theirs.cpu, ours.peak/theirs.peak)
}
