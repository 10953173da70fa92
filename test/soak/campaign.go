// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// campaign is a running campaign.
type campaign struct {
	Options
	began time.Time

	parts    []*part // the control plane first; guarded by mu until the rounds begin, constant afterwards
	plane    *part
	disk     *disk // nil if no separate disk was requested, or if it cannot be mounted
	noDisk   string
	client   kubernetes.Interface
	observer *observer
	churn    *churn
	keeping  sync.WaitGroup
	// rolling is set if processes are replaced one by one. The other replica keeps running, so the
	// restart of one replica does not make the controllers count as unhealthy.
	rolling  bool
	election election
	release  context.CancelFunc // stops restarting parts

	drains *drains // with Options.Faults

	faults, requests, actions, ends *counts
	sizes                           *sizes

	enough context.CancelFunc // ends the rounds

	mu         sync.Mutex // guards the fields below
	violations []Violation
	phase      string
	rounds     int
	rests      []time.Duration
	unrest     []string // what is not at rest yet
}

// Run plays a campaign. It returns an error only if the campaign could not be played to its end;
// broken promises are in the report.
func Run(ctx context.Context, o Options) (*Report, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	c := &campaign{Options: o, began: time.Now(), phase: "start", election: quick, faults: newCounts(),
		requests: newCounts(), actions: newCounts(), ends: newCounts(), sizes: newSizes()}
	c.observer = newObserver(c.Silence, c.addViolation)
	defer c.cleanUp()
	if err := c.startAll(ctx); err != nil {
		return nil, err
	}
	playing, enough := context.WithCancel(ctx)
	defer enough()
	c.enough = enough
	watching, stop := context.WithCancel(ctx)
	var witnesses sync.WaitGroup
	for _, f := range newFollowers(c.client, c.observer) {
		witnesses.Go(func() { f.runFollower(watching) })
	}
	witnesses.Go(func() { c.watchClock(watching) })
	witnesses.Go(func() { c.pollReady(watching) })
	witnesses.Go(func() { c.printProgress(watching) })
	c.playRounds(playing)
	stop()
	witnesses.Wait()
	if ctx.Err() != nil {
		return c.makeReport(), ctx.Err() // report the results so far
	}
	c.endParts()
	return c.makeReport(), nil
}

// newRand returns a separate source of randomness for one purpose, such as forStorm.
func (c *campaign) newRand(purpose uint64) *rand.Rand { return rand.New(rand.NewPCG(c.Seed, purpose)) }

const (
	forStorm = iota + 1
	forChurn
	forNetworks // plus the number of the network
)

// playRounds plays the rounds.
func (c *campaign) playRounds(ctx context.Context) {
	c.setPhase("first rest")
	if !c.awaitRest(ctx) {
		return // faults would prove nothing without a working cluster
	}
	storm := &storm{c: c, rng: c.newRand(forStorm), counts: c.faults}
	rage := storm.runFaults
	if c.Faults {
		rage = (&trials{c: c, rng: c.newRand(forStorm), drains: c.drains}).runTrials
	}
	for ctx.Err() == nil && (c.rounds == 0 || time.Since(c.began) < c.For) {
		c.setPhase("storm")
		storm.targets = c.parts
		if c.rounds%2 == 1 {
			storm.targets = c.networkedParts()
		}
		raging, over := context.WithTimeout(ctx, c.Storm)
		var both sync.WaitGroup
		both.Go(func() { rage(raging) })
		both.Go(func() { c.churn.runActions(raging) })
		both.Wait()
		over()
		c.setPhase("faults over")
		c.awaitSettled(ctx)
		c.setPhase("rest")
		c.awaitRest(ctx)
		c.mu.Lock()
		c.rounds++
		c.mu.Unlock()
	}
}

func (c *campaign) setPhase(phase string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.phase = phase
	for _, p := range c.parts {
		p.journal.writeNote("phase: %s", phase)
	}
}

// startAll starts the control plane, and all other parts, each behind a separate network.
func (c *campaign) startAll(ctx context.Context) error {
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return err
	}
	data := filepath.Join(c.Dir, "cluster")
	switch {
	case !c.Disk:
		c.noDisk = "not wanted"
	default:
		var err error
		if c.disk, err = newDisk(data); err != nil {
			c.noDisk = err.Error()
		}
	}
	var more []string
	if c.Faults {
		more = []string{"--guard-evictions"}
	}
	keeping, release := context.WithCancel(context.Background())
	c.release = release
	// The control plane picks a free port, and keeps it when it starts again.
	var err error
	c.plane, err = c.newPart("controlplane", nil, func(string) []string {
		return append([]string{filepath.Join(c.Bin, "berth-controlplane"), "--data-dir", data, "--log-to-stderr",
			// At the default interval, an API server that is killed every other minute would never
			// compact, and its disk would fill up.
			"--etcd-compaction-interval", "20s",
			"--default-not-ready-toleration-seconds", strconv.Itoa(lostFor),
			"--default-unreachable-toleration-seconds", strconv.Itoa(lostFor)}, more...)
	})
	if err != nil {
		return err
	}
	c.keeping.Go(func() { c.plane.keepRunning(keeping) })
	config, err := c.connectAPI(ctx, filepath.Join(data, "kubeconfig"))
	if err != nil {
		return err
	}
	if c.client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	c.churn = &churn{client: c.client, rng: c.newRand(forChurn), nodes: c.Nodes, counts: c.actions}
	if err := c.startParts(config); err != nil {
		return err
	}
	for _, p := range c.networkedParts() {
		if len(p.argv) > 0 {
			c.keeping.Go(func() { p.keepRunning(keeping) })
		}
	}
	return nil
}

// connectAPI waits until the API server is ready, and returns its client configuration.
func (c *campaign) connectAPI(ctx context.Context, kubeconfig string) (*rest.Config, error) {
	for end := time.Now().Add(2 * time.Minute); ; {
		config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err == nil {
			config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+
				","+runtime.ContentTypeJSON
			config.QPS, config.UserAgent = -1, "berth-soak"
			var client *kubernetes.Clientset
			if client, err = kubernetes.NewForConfig(config); err == nil {
				_, err = client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Raw()
			}
		}

		switch {
		case err == nil:
			return config, nil
		case time.Now().After(end):
			return nil, fmt.Errorf("the control plane did not start: %w: see %s", err, c.Dir)
		case !sleepFor(ctx, 100*time.Millisecond):
			return nil, ctx.Err()
		}
	}
}

// networkedParts returns the parts that reach the API server through a network: all but the control
// plane.
func (c *campaign) networkedParts() []*part {
	return slices.DeleteFunc(slices.Clone(c.parts), func(p *part) bool { return p.network == nil })
}

func (c *campaign) controllerParts() []*part {
	return slices.DeleteFunc(slices.Clone(c.parts), func(p *part) bool { return p.kindName() != "controller" })
}

// watchClock periodically checks time-dependent promises.
func (c *campaign) watchClock(ctx context.Context) {
	last := time.Now()
	for sleepFor(ctx, 500*time.Millisecond) {
		now, passed := time.Now(), time.Duration(0)
		fair := c.plane.isWell(now, recovers)
		for _, p := range c.controllerParts() {
			fair = fair && (c.rolling || p.isWell(now, recovers))
		}
		if fair && now.Sub(last) < 2*time.Second { // otherwise this process itself was stalled
			passed = now.Sub(last)
		}
		last = now
		c.observer.checkLate(now, passed)
	}
}

// pollReady polls the API server's readiness, so that a running but unresponsive server also counts
// as disturbed.
func (c *campaign) pollReady(ctx context.Context) {
	for sleepFor(ctx, 500*time.Millisecond) {
		if err := c.checkReady(ctx); err != nil {
			c.plane.noteTrouble()
		}
	}
}

func (c *campaign) checkReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err := c.client.Discovery().RESTClient().Get().AbsPath("/readyz").MaxRetries(0).Do(ctx).Raw()
	return err
}

// endParts terminates all parts, the control plane last.
func (c *campaign) endParts() {
	c.setPhase("end")
	c.release() // from now on, ended processes are not restarted
	for _, p := range slices.Backward(c.parts) {
		code, ran := p.terminateProcess(time.Minute)
		if !ran {
			continue
		}
		c.observer.checks.addOne(cleanEnd)
		if code != 0 {
			c.addViolation(cleanEnd, fmt.Sprintf("%s was asked to end and did so with exit code %d", p.name, code), p.name)
		}
	}
}

// cleanUp ends all processes and removes all mounts.
func (c *campaign) cleanUp() {
	if c.release != nil {
		c.release()
	}
	ended := make(chan struct{})
	go func() { c.keeping.Wait(); close(ended) }()
	for over := false; !over; { // repeat, because a process may be starting
		for _, p := range slices.Backward(c.parts) {
			p.killProcess(0)
		}
		select {
		case <-ended:
			over = true
		case <-time.After(50 * time.Millisecond):
		}
	}
	for _, p := range c.parts {
		if p.network != nil {
			p.network.close()
		}
		p.journal.file.Close()
	}
	if c.disk != nil {
		if err := c.disk.unmountDisk(); err != nil {
			fmt.Fprintln(c.Out, "soak: remove the disk:", err)
		}
	}
}
