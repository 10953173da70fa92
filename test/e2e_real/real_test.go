// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2ereal

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestRealNodes installs Berth next to kube-scheduler and in its place as the pages describe,
// makes nodes fail, and removes Berth.
func TestRealNodes(t *testing.T) {
	if !*enabled {
		t.Skip("real nodes need root and a minute to start: run make real-nodes")
	}
	began := time.Now()
	c := startCluster(t)
	t.Logf("%d nodes ready after %.1f s", len(c.nodes), time.Since(began).Seconds())
	before := c.objects()

	if *pages {
		c.runPages(before)
	} else {
		c.shell("make image IMG=$IMG")
	}
	c.step("webhook", func(c *cluster) {
		c.shell("make deploy IMG=$IMG OVERLAY=replace-default COMPONENTS=webhook")
		c.stopUpstream()
		c.webhookAdmits()
	})
	rows := c.runScenarios(nil, failures)
	c.step("guard", func(c *cluster) {
		c.shell("make deploy IMG=$IMG OVERLAY=replace-default COMPONENTS='webhook surge eviction-guard'")
	})
	c.runScenarios(rows, drains)
	c.step("back", func(c *cluster) {
		c.startUpstream()
		c.shell("make undeploy")
		c.nothingLeft(before)
	})
	c.Logf("in all %.0f s", time.Since(began).Seconds())
}

// runPages installs and removes Berth as the pages describe.
func (c *cluster) runPages(before string) {
	c.Helper()
	c.step("install.md", func(c *cluster) {
		c.run(c.page("install.md"), "")
		c.nothingLeft(before)
	})
	host, err := os.Hostname()
	c.must(err)
	c.step("replace-kube-scheduler.md", func(c *cluster) {
		page := c.page("replace-kube-scheduler.md")
		for _, heading := range []string{"1. Check", "2. Side by side", "3. Replace kube-scheduler"} {
			c.run(page, heading)
		}
		c.stopUpstream()
		c.startUpstream()
		c.run(page, "Back")
		c.leads(host + "_") // kube-scheduler
		c.nothingLeft(before)
	})
	c.step("shadow.md", func(c *cluster) {
		c.run(c.page("shadow.md"), "")
		c.nothingLeft(before)
	})
}

// stopUpstream stops kube-scheduler and kube-controller-manager, whose manifests the page moves on
// a kubeadm cluster, and waits until Berth leads.
func (c *cluster) stopUpstream() {
	c.Helper()
	_, err := c.scheduler.Stop()
	c.must(err)
	_, err = c.manager.Stop()
	c.must(err)
	c.leads("berth-scheduler-")
}

// startUpstream starts both again. kube-scheduler leads when Berth's pods have ended.
func (c *cluster) startUpstream() {
	c.Helper()
	c.startScheduler()
	c.startManager()
}

// webhookAdmits verifies that the API server reaches the webhook: upstream's plugin for this
// annotation is off by default, and Berth's webhook applies the annotation.
func (c *cluster) webhookAdmits() {
	c.Helper()
	c.kubectl("create", "namespace", "annotated")
	c.kubectl("annotate", "namespace", "annotated", `scheduler.alpha.kubernetes.io/defaultTolerations=[{"key":"from","value":"webhook"}]`)
	c.eventually("a pod has the toleration of its namespace", func() error {
		out, err := c.try("", "run", "try", "-n", "annotated", "--image=busybox:1", "--dry-run=server", "-o", "jsonpath={.spec.tolerations[?(@.key=='from')].value}")
		if err == nil && out != "webhook" {
			err = fmt.Errorf("its value is %q", out)
		}
		return err
	})
	c.kubectl("delete", "namespace", "annotated")
}

// step runs a part that later parts depend on. If it fails, the test ends.
func (c *cluster) step(name string, run func(*cluster)) {
	c.Helper()
	if !c.part(name, run) {
		c.FailNow()
	}
}

// part runs a part of the test, and reports whether it passed.
func (c *cluster) part(name string, run func(*cluster)) bool {
	c.Helper()
	began := time.Now()
	passed := c.T.Run(name, func(t *testing.T) {
		inner := *c
		inner.T = t
		run(&inner)
		c.scheduler, c.manager = inner.scheduler, inner.manager
	})
	c.Logf("%s: %.0f s", name, time.Since(began).Seconds())
	return passed
}

// objects lists the cluster's objects of Berth.
func (c *cluster) objects() string {
	c.Helper()
	var kinds []string
	for _, kind := range strings.Fields(c.kubectl("api-resources", "--verbs=list", "-o", "name")) {
		if kind != "events" && kind != "events.events.k8s.io" {
			kinds = append(kinds, kind)
		}
	}
	var found []string
	for line := range strings.Lines(c.kubectl("get", strings.Join(kinds, ","), "-A", "-o",
		`jsonpath={range .items[*]}{.kind} {.metadata.namespace} {.metadata.name}{"\n"}{end}`)) {
		if strings.Contains(line, "berth-") {
			found = append(found, line)
		}
	}
	return strings.Join(found, "")
}

// nothingLeft waits until the cluster has the same objects of Berth as before.
func (c *cluster) nothingLeft(before string) {
	c.Helper()
	c.eventually("nothing is left", func() error {
		if now := c.objects(); now != before {
			return fmt.Errorf("left:\n%s", now)
		}
		return nil
	})
}

// leads waits until the holder of kube-scheduler's Lease has the prefix.
func (c *cluster) leads(prefix string) {
	c.Helper()
	c.eventually(prefix+" leads", func() error {
		lease, err := c.client.CoordinationV1().Leases("kube-system").Get(c.Context(), "kube-scheduler", metav1.GetOptions{})
		if err == nil && (lease.Spec.HolderIdentity == nil || !strings.HasPrefix(*lease.Spec.HolderIdentity, prefix)) {
			err = errNotYet
		}
		return err
	})
}
