// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/world/virtual"
)

// schedulerConfig returns a configuration with two profiles: default-scheduler, and the profile
// named by careful. The flag --preemption-respects-budgets selects the latter.
func (c *campaign) schedulerConfig() []byte {
	return fmt.Appendf(nil, `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: %t, leaseDuration: %s, renewDeadline: %s, retryPeriod: %s}
profiles:
- schedulerName: default-scheduler
- schedulerName: %s
`, !c.Faults, c.election.leaseDuration, c.election.renewDeadline, c.election.retryPeriod, careful)
}

// startParts starts two schedulers, two controllers and the nodes.
func (c *campaign) startParts(api *rest.Config) error {
	config := filepath.Join(c.Dir, "scheduler.yaml")
	if err := os.WriteFile(config, c.schedulerConfig(), 0o600); err != nil {
		return err
	}

	berth := filepath.Join(c.Bin, "berth")
	scheduler := []string{berth, "scheduler"}
	if alone := filepath.Join(c.Bin, "berth-scheduler"); pathExists(alone) {
		scheduler = []string{alone}
	}

	endpoints := []string{"--health-bind-address", "127.0.0.1:0", "-v", "2"}
	roles := map[string][]string{
		"scheduler": append(append(scheduler, "--config", config, "--secure-port", "0",
			"--preemption-respects-budgets="+careful), endpoints...),
		"controller": append([]string{berth, "controller", "--node-monitor-grace-period", c.Silence.String(), "--node-eviction-rate", "2",
			"--leader-elect-lease-duration", c.election.leaseDuration.String(), "--leader-elect-renew-deadline",
			c.election.renewDeadline.String(),
			"--leader-elect-retry-period", c.election.retryPeriod.String()}, endpoints...),
		"nodes": {berth, "nodes", "--count", strconv.Itoa(c.Nodes), "--zones", "3", "--cpu", strconv.Itoa(nodeCPU), "--memory", "16Gi",
			"--pods", strconv.Itoa(nodePods), "--resource", fmt.Sprintf("%s=%d", widget, nodeWidgets),
			"--lease-renew-interval", (c.Silence / 5).String()},
	}

	names := []string{"scheduler-1", "scheduler-2", "controller-1", "controller-2", "nodes"}
	if c.Faults {
		names = []string{"scheduler-1", "controller-1", "webhook-1", "drain", "nodes"}
		roles["controller"] = append(roles["controller"], "--controllers=*,eviction-guard", "--leader-elect=false")
		roles["webhook"] = append([]string{berth, "webhook", "--guard-evictions", "--rules=false", "--namespace", metav1.NamespaceSystem,
			"--guard-deadline", "1m", "--bind-address", "127.0.0.1:0", "--advertise-host", "127.0.0.1", "--shutdown-delay", "0s"}, endpoints...)
	}
	for i, name := range names {
		kind, _, _ := strings.Cut(name, "-")
		network, err := newNetwork(api, c.newRand(forNetworks+uint64(i)), c.requests, func(pod string) {
			if kind == "controller" {
				c.observer.noteDeletion(pod, time.Now())
			}
		})
		if err != nil {
			return err
		}
		if c.Faults && kind != "nodes" {
			network.limit = func(t virtual.Target) (limit int, together bool) { return limitOf(kind, t) }
		}
		if _, err := c.newPart(name, network, func(kubeconfig string) []string {
			if kind == "drain" {
				c.drains = &drains{c: c, kubeconfig: kubeconfig}
				return nil
			}
			return append(append([]string{}, roles[kind]...), "--kubeconfig", kubeconfig)
		}); err != nil {
			return err
		}
		if kind == "drain" {
			c.drains.part = c.parts[len(c.parts)-1]
		}
	}

	return nil
}

func pathExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// newPart adds a part with a log and a kubeconfig in the campaign's folder. argv returns its
// command line.
func (c *campaign) newPart(name string, network *network, argv func(kubeconfig string) []string) (*part, error) {
	file, err := os.Create(filepath.Join(c.Dir, name+".log"))
	if err != nil {
		return nil, err
	}

	p := &part{name: name, network: network, excused: c.excuseOf, ended: c.partEnded}
	p.journal = newJournal(name, file, func(line string) {
		c.addViolation(noPanic, fmt.Sprintf("%s: %s", name, line), name)
	})
	kubeconfig := filepath.Join(c.Dir, name+".kubeconfig")
	if network != nil {
		if err := network.writeKubeconfig(kubeconfig); err != nil {
			return nil, err
		}
	}

	p.argv = argv(kubeconfig)
	c.mu.Lock()
	c.parts = append(c.parts, p)
	c.mu.Unlock()
	return p, nil
}

// kindName returns the part's name without its number.
func (p *part) kindName() string {
	kind, _, _ := strings.Cut(p.name, "-")
	return kind
}

// excuseOf returns the reason if a process exited for a documented cause: it lost its Lease, its
// first request was refused, the API server could not be reached, or the disk of etcd is full.
func (c *campaign) excuseOf(p *part, words string) (string, bool) {
	switch {
	case strings.Contains(words, "leadership lost"):
		return "leadership lost", true
	case strings.Contains(words, "cannot be reached"), strings.Contains(words, "no answer"):
		return "the API server could not be reached", true
	case p.kindName() == "nodes" && strings.Contains(words, "berth: "+refusal):
		return "the API server refused its first request", true
	case c.disk != nil && c.disk.filled.Load() && strings.Contains(words, "no space left"):
		return "no room for the state of etcd", true
	}
	return "", false
}

// partEnded records that a process exited without a request.
func (c *campaign) partEnded(p *part, why string, excused bool) {
	c.observer.checks.addOne(noPanic)
	c.ends.addOne(p.kindName() + ": " + why)
	if !excused {
		c.addViolation(noPanic, fmt.Sprintf("%s ended by itself: %s: %s", p.name, why, firstOf(p.journal.lastLines(3))), p.name)
	}
}

func firstOf(lines []string) string {
	for _, l := range lines {
		if !strings.HasPrefix(l, "---- ") {
			return l
		}
	}
	return ""
}
