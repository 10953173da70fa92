// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// TenantOptions configures a campaign without failures but with a hostile user: a tenant with the
// permissions of a namespace's administrator does anything that the API server accepts, while one
// normal pod a second is created in another namespace, the witness.
type TenantOptions struct {
	Options
	// Calm is the duration of the witness's measurements before and after the tenant's actions.
	Calm time.Duration
	// Rate limits the tenant's requests per second, on Workers connections.
	Rate, Workers int
	// Slack is added to the maximum wait of the witness's pods, for machines that have other work
	// as well.
	Slack time.Duration
}

// TenantDefaults returns the command's defaults.
func TenantDefaults() TenantOptions {
	o := Defaults()
	o.Nodes, o.Disk = 30, false
	return TenantOptions{Options: o, Calm: 20 * time.Second, Rate: 60, Workers: 4}
}

// The promises of this campaign, in addition to those about panics and memory.
const (
	probeServed  = "no pod of another namespace waits longer than 4 times what it waits in peace, and a second"
	backToNormal = "all is back to normal within a minute after what the tenant left is deleted"
)

const (
	tenantNamespace, probeNamespace = "tenant", "witness"
	tenantUser                      = "tenant"
	normalWithin                    = time.Minute
	leastPeace                      = 50 * time.Millisecond // shorter waits in the calm phase count as this value
)

// tenancy is a running campaign.
type tenancy struct {
	*campaign
	o       TenantOptions
	served  *served
	longest time.Duration // longest wait in a calm phase
	calm    map[string]size
	after   map[string]size
	peace   figures
	war     figures
	again   figures
	decided decisions
	evicted time.Duration // time taken by the API server to delete the tenant's objects
}

// RunTenant plays the campaign. It returns an error only if the campaign could not be played to its
// end; broken promises are in the report.
func RunTenant(ctx context.Context, o TenantOptions) (*TenantReport, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	c := &campaign{Options: o.Options, began: time.Now(), phase: "start", faults: newCounts(), requests: newCounts(),
		actions: newCounts(), ends: newCounts(), sizes: newSizes()}
	c.observer = newObserver(c.Silence, c.addViolation)
	t := &tenancy{campaign: c, o: o}
	defer c.cleanUp()

	config, err := t.startTenancy(ctx)
	if err != nil {
		return nil, err
	}
	if err := t.createObjects(ctx); err != nil {
		return nil, err
	}
	if err := t.playPhases(ctx, config); err != nil {
		return t.makeTenantReport(), err
	}

	c.endParts()
	return t.makeTenantReport(), nil
}

// startTenancy starts the control plane and one process of each component, with the identities
// issued by the control plane.
func (t *tenancy) startTenancy(ctx context.Context) (*rest.Config, error) {
	c := t.campaign
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, err
	}

	data := filepath.Join(c.Dir, "cluster")
	keeping, release := context.WithCancel(context.Background())
	c.release = release
	var err error
	c.plane, err = c.newPart("controlplane", nil, func(string) []string {
		return []string{filepath.Join(c.Bin, "berth-controlplane"), "--data-dir", data, "--log-to-stderr"}
	})
	if err != nil {
		return nil, err
	}

	c.keeping.Go(func() { c.plane.keepRunning(keeping) })
	config, err := c.connectAPI(ctx, filepath.Join(data, "kubeconfig"))
	if err != nil {
		return nil, err
	}
	if c.client, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}

	berth := filepath.Join(c.Bin, "berth")
	endpoints := []string{"--leader-elect=false", "--health-bind-address", "127.0.0.1:0", "-v", "2"}
	for name, argv := range map[string][]string{
		"scheduler":  append([]string{berth, "scheduler", "--secure-port", "0"}, endpoints...),
		"controller": append([]string{berth, "controller"}, endpoints...),
		"nodes": {berth, "nodes", "--count", strconv.Itoa(c.Nodes), "--zones", "3", "--cpu",
			strconv.Itoa(nodeCPU), "--memory", "16Gi"},
	} {
		p, err := c.newPart(name, nil, func(string) []string {
			return append(argv, "--kubeconfig", filepath.Join(data, name+".kubeconfig"))
		})
		if err != nil {
			return nil, err
		}
		c.keeping.Go(func() { p.keepRunning(keeping) })
	}

	return config, nil
}

// playPhases plays a calm phase, the tenant, and another calm phase.
func (t *tenancy) playPhases(ctx context.Context, config *rest.Config) error {
	t.served = newServed(t.client, t.reportLate)
	watching, stop := context.WithCancel(ctx)
	var witnesses sync.WaitGroup
	defer witnesses.Wait()
	defer stop()
	witnesses.Go(func() { t.served.watchPods(watching) })
	witnesses.Go(func() { t.served.createPods(watching) })
	witnesses.Go(func() { t.served.runEcho(watching) })
	witnesses.Go(func() { t.served.watchEchoes(watching) })
	witnesses.Go(func() { t.measureAll(watching) })
	witnesses.Go(func() { t.printTenantProgress(watching) })

	t.setPhase("peace")
	if !sleepFor(ctx, t.o.Calm) {
		return ctx.Err()
	}
	if t.peace = t.served.takeWaits(); t.peace.pods == 0 {
		return fmt.Errorf("no pod of the witness was bound in peace: see %s", t.Dir)
	}
	t.longest = t.peace.longest()
	t.calm = t.sizesNow()

	t.setPhase("tenant")
	t.served.setBound(t.waitBound())
	raging, over := context.WithTimeout(ctx, t.For)
	var operator sync.WaitGroup
	operator.Go(func() { t.runOperator(raging, filepath.Join(t.Dir, "cluster", "kubeconfig")) })
	err := t.runTenant(raging, config)
	over()
	operator.Wait()
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	t.war = t.served.takeWaits()
	t.served.setBound(0) // from now on waits are not judged: an administrator deletes the tenant's objects

	t.setPhase("after")
	return t.awaitRecovery(ctx)
}

// printTenantProgress prints a line every ten seconds.
func (t *tenancy) printTenantProgress(ctx context.Context) {
	for sleepFor(ctx, 10*time.Second) {
		t.mu.Lock()
		fmt.Fprintf(t.Out, "%6s  %-6s  %d requests of the tenant, %d refused; %d violations; the witness: %s\n",
			time.Since(t.began).Round(time.Second), t.phase, t.actions.sum(), t.requests.sum(), len(t.violations), t.served.soFar())
		t.mu.Unlock()
	}
}

// waitBound returns the maximum wait of the witness's pods.
func (t *tenancy) waitBound() time.Duration {
	return 4*max(t.longest, leastPeace) + time.Second + t.o.Slack
}

// reportLate records a violation by a pod whose wait exceeds the bound.
func (t *tenancy) reportLate(name string, waited time.Duration) {
	t.addViolation(probeServed, fmt.Sprintf("a pod waited %v for its node; in peace at most %v",
		waited.Round(time.Millisecond), t.longest.Round(time.Millisecond)), probeNamespace+"/"+name)
}

// runTenant runs the tenant until the context ends.
func (t *tenancy) runTenant(ctx context.Context, config *rest.Config) error {
	ticks := time.NewTicker(time.Second / time.Duration(t.o.Rate))
	defer ticks.Stop()
	var all sync.WaitGroup
	for i := range t.o.Workers {
		own := rest.CopyConfig(config)
		own.WarningHandler, own.QPS = rest.NoWarnings{}, -1
		own.Impersonate = rest.ImpersonationConfig{UserName: tenantUser, Groups: []string{"system:authenticated"}}
		client, err := kubernetes.NewForConfig(own)
		if err != nil {
			return err
		}
		hostile := &hostile{client: client, rng: t.newRand(forTenant + uint64(i)), nodes: t.Nodes, done: t.actions, refused: t.requests}
		all.Go(func() {
			for ctx.Err() == nil {
				select {
				case <-ctx.Done():
					return
				case <-ticks.C:
					hostile.actOnce(ctx)
				}
			}
		})
	}

	all.Wait()
	return nil
}

const forTenant = 1000 // first purpose of a worker's randomness; see newRand

// awaitRecovery removes the tenant's objects, and waits until the initial state is restored.
func (t *tenancy) awaitRecovery(ctx context.Context) error {
	stopped := time.Now()
	if err := t.evictTenant(ctx); err != nil {
		return err
	}
	// The time taken by the API server for the deletion is measured separately.
	t.evicted = time.Since(stopped)
	ended := time.Now()
	var left string
	t.served.takeWaits()
	for {
		if left = t.whyAbnormal(); left == "" {
			break
		}
		if time.Since(ended) > normalWithin {
			t.addViolation(backToNormal, left, "scheduler")
			break
		}
		if !sleepFor(ctx, 4*time.Second) { // long enough for some new pods of the witness
			return ctx.Err()
		}
	}
	t.observer.checks.addOne(backToNormal)
	t.mu.Lock()
	t.rests = append(t.rests, time.Since(ended))
	t.mu.Unlock()
	t.served.takeWaits()
	if !sleepFor(ctx, t.o.Calm/2) {
		return ctx.Err()
	}
	t.again = t.served.takeWaits()
	t.after = t.sizesNow()
	return nil
}
