// evictions measures taint eviction in bulk: Berth and upstream's kube-controller-manager, each as
// a process of its own, one after the other on the same cluster of objects.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	all := flag.String("only", "", "scenarios to run, by number, as 1,3; all if empty")
	short := flag.Bool("short", false, "a tenth of everything, to see that it works")
	once := flag.String("side", "", "berth or upstream: that one alone")
	bin := flag.String("bin", "", "folder with berth, berth-controlplane and kube-controller-manager, in place of building them")
	flags := flag.String("berth-flags", "", "further flags of berth controller, separated by spaces")
	profile := flag.Bool("profile", false, "leave Berth's profiles beside the table (evictions-*.pprof)")
	flag.Usage = func() {
		fmt.Fprintf(os.Stderr, "usage: go run ./cmd/evictions\n\nAbout eight minutes on two processors; builds what it runs.\n\n")
		flag.PrintDefaults()
	}

	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	b := &bench{short: *short, profile: *profile, bin: *bin, flags: strings.Fields(*flags), out: os.Stdout}
	if *all != "" {
		b.only = strings.Split(*all, ",")
	}

	if *once != "" {
		b.sides = []string{*once}
	}
	if err := b.runBench(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "evictions:", err)
		os.Exit(1)
	}
}
