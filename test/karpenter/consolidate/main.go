// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Command consolidate compares Karpenter's consolidation with Berth's goal `cost` on a live
// cluster. It starts `berth up` without nodes, Karpenter with its kwok provider, and kwok as the
// kubelets of Karpenter's nodes. Karpenter buys nodes for Deployments, which are then scaled to
// half. From then on either Karpenter or `berth controller` makes the cluster cheaper, and
// consolidate prints the cost, the moved pods and the pending pods.
//
//	go build -o /tmp/karpenter sigs.k8s.io/karpenter/kwok
//	go run ./consolidate -karpenter /tmp/karpenter -kwok /tmp/kwok -nodes 100 -side berth -mix
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

type options struct {
	berth, karpenter, kwok string // programs
	stages, crds, types    string // files of the modules of kwok and Karpenter
	nodes                  int
	side                   string
	mix                    bool
	limit, every           time.Duration
	dir                    string
	berthFlags             string
	kill, churn            int
	manifests              string
}

func main() {
	var o options
	flag.StringVar(&o.berth, "berth", "../../bin/berth", "the berth command")
	flag.StringVar(&o.karpenter, "karpenter", "", "Karpenter with its kwok provider")
	flag.StringVar(&o.kwok, "kwok", "", "kwok's kubelets")
	flag.StringVar(&o.stages, "stages", moduleDir("sigs.k8s.io/kwok")+"/kustomize/stage", "folder with kwok's stages")
	flag.StringVar(&o.crds, "crds", moduleDir("sigs.k8s.io/karpenter"), "folder of Karpenter's module")
	flag.IntVar(&o.nodes, "nodes", 52, "about how many nodes Karpenter buys")
	flag.StringVar(&o.side, "side", "berth", "who makes the cluster cheaper: berth or karpenter")
	flag.BoolVar(&o.mix, "mix", false, "a third of the Deployments have disruption budgets, a third are spread over zones, and 2 % of the pods must not be disrupted")
	flag.DurationVar(&o.limit, "for", 10*time.Minute, "how long to watch")
	flag.DurationVar(&o.every, "every", 15*time.Second, "time between two samples")
	flag.StringVar(&o.dir, "dir", "", "folder for the cluster and the logs (default: a temporary one)")
	flag.StringVar(&o.berthFlags, "berth-flags", "--every=1m", "further flags of berth controller")
	flag.StringVar(&o.manifests, "manifests", "../../deploy/kustomize", "folder with the permissions of berth controller")
	flag.IntVar(&o.kill, "kill", 0, "kill berth controller with SIGKILL at every n-th action (a created or deleted NodeClaim)")
	flag.IntVar(&o.churn, "churn", 0, "delete this number of pods per second, which their ReplicaSets replace")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		log.Fatal(err)
	}
}

// moduleDir returns the folder of a module in the module cache, if it is there.
func moduleDir(module string) string {
	out, err := exec.Command("go", "list", "-m", "-json", module).Output()
	var m struct{ Dir string }
	if err == nil {
		err = json.Unmarshal(out, &m)
	}
	if err != nil {
		return module
	}
	return m.Dir
}

func run(ctx context.Context, o options) (err error) {
	if o.dir == "" {
		if o.dir, err = os.MkdirTemp("", "consolidate"); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return err
	}
	o.types = filepath.Join(o.crds, "kwok/cloudprovider/instance_types.json")
	c := &cluster{options: o, kubeconfig: filepath.Join(o.dir, "cluster", "kubeconfig")}
	defer c.stop()
	if err := c.start(ctx); err != nil {
		return err
	}
	if err := c.fill(ctx); err != nil {
		return err
	}
	return c.watch(ctx)
}

// process is a program that runs until it is killed, with its output in a file.
type process struct {
	*exec.Cmd
	ended chan struct{}
}

func (c *cluster) spawn(name string, env []string, words ...string) (*process, error) {
	out, err := os.OpenFile(filepath.Join(c.dir, name+".log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p := &process{exec.Command(words[0], words[1:]...), make(chan struct{})}
	p.Env = append(append(os.Environ(), "KUBECONFIG="+c.kubeconfig), env...)
	p.Stdout, p.Stderr = out, out
	if err := p.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	c.processes = append(c.processes, p)
	go func() {
		p.Wait()
		close(p.ended)
	}()
	return p, nil
}

func (p *process) end(how syscall.Signal) {
	p.Process.Signal(how)
	select {
	case <-p.ended:
	case <-time.After(20 * time.Second):
		p.Process.Kill()
		<-p.ended
	}
}
