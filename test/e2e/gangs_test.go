// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/test/internal/nightly"
)

var gangRounds = flag.Int("gang-rounds", 4, "how often TestTwoGangsForOneRoom has two gangs compete; the long form is 200")

const gangGates = "GenericWorkload=true"

// gangs creates gangs and filler pods in a cluster. A node has room for only one member of a gang.
type gangs struct {
	*pair
	t    *testing.T
	most int64 // request of a member, in millicores
}

// newGangs starts a cluster and two schedulers that share a Lease.
func newGangs(t *testing.T, nodes int) *gangs {
	t.Helper()
	dir := t.TempDir()
	g := &gangs{t: t, pair: &pair{config: filepath.Join(dir, "gangs.yaml"), flags: []string{"--feature-gates", gangGates, "--binders", "1"},
		c: start(t, filepath.Join(dir, "gangs"), "--nodes", fmt.Sprint(nodes), "--ui-port", "-1", "--feature-gates", gangGates)}}
	if err := os.WriteFile(g.config, fmt.Appendf(nil, `
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {resourceName: ha, leaseDuration: %s, renewDeadline: %s, retryPeriod: %s}
profiles: [{schedulerName: ha}]
`, *haLease, *haLease*2/3, *haLease*2/15), 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := g.c.client.CoreV1().Nodes().List(background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	g.most = list.Items[0].Status.Allocatable.Cpu().MilliValue() * 6 / 10
	g.leader(t)
	return g
}

func (g *gangs) group(name string, least int) {
	g.t.Helper()
	group := &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: name}}
	group.Spec.SchedulingPolicy.Gang = &schedulingv1beta1.GangSchedulingPolicy{MinCount: int32(least)}
	if _, err := g.c.client.SchedulingV1beta1().PodGroups("default").Create(background(), group, metav1.CreateOptions{}); err != nil {
		g.t.Fatal(err)
	}
}

// pod creates a member of a group. Without a group it creates a filler pod with a tiny request.
func (g *gangs) pod(name, group string) {
	milli := g.most
	if group == "" {
		milli = 1
	}
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"gang": group}}, Spec: v1.PodSpec{
		SchedulerName: "ha",
		Containers: []v1.Container{{Name: "c", Image: "i", Resources: v1.ResourceRequirements{
			Requests: v1.ResourceList{v1.ResourceCPU: *resource.NewMilliQuantity(milli, resource.DecimalSI)},
		}}},
	}}
	if group != "" {
		p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &group}
	}
	eventually(g.t, patience, func() error { // the ServiceAccount may not exist yet
		_, err := g.c.client.CoreV1().Pods("default").Create(background(), p, metav1.CreateOptions{})
		return err
	})
}

// bound returns the number of bound pods of a gang that are not terminating.
func (g *gangs) bound(group string) (n int) {
	g.t.Helper()
	list, err := g.c.client.CoreV1().Pods("default").List(background(), metav1.ListOptions{LabelSelector: "gang=" + group})
	if err != nil {
		g.t.Fatal(err)
	}
	for i := range list.Items {
		if list.Items[i].Spec.NodeName != "" && list.Items[i].DeletionTimestamp == nil {
			n++
		}
	}
	return n
}

// remove deletes the pods of a gang without a grace period, and the group.
func (g *gangs) remove(group string) {
	g.t.Helper()
	options := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	if err := g.c.client.CoreV1().Pods("default").DeleteCollection(background(), options, metav1.ListOptions{LabelSelector: "gang=" + group}); err != nil {
		g.t.Fatal(err)
	}
	if err := g.c.client.SchedulingV1beta1().PodGroups("default").Delete(background(), group, metav1.DeleteOptions{}); err != nil {
		g.t.Fatal(err)
	}
}

// killLeader kills the leading scheduler.
func (g *gangs) killLeader() {
	g.t.Helper()
	leads := g.leader(g.t)
	g.replicas = slices.DeleteFunc(g.replicas, func(r *replica) bool { return r == leads })
	leads.strike(g.t, false)
}

// TestTwoGangsForOneRoom verifies that two gangs, created simultaneously in a cluster with room for
// one gang, never share the room: one gang is placed completely, and the other only after the first
// has been deleted. In every second round the leading scheduler is killed while the pods are
// created.
func TestTwoGangsForOneRoom(t *testing.T) {
	nightly.Only(t)
	t.Parallel()
	const size = 3
	g := newGangs(t, size)
	for round := range *gangRounds {
		names := []string{fmt.Sprint("red-", round), fmt.Sprint("blue-", round)}
		for _, name := range names {
			g.group(name, size)
		}
		var pods sync.WaitGroup
		for i := range size {
			for _, name := range names {
				pods.Go(func() { g.pod(fmt.Sprint(name, "-", i), name) })
			}
		}
		if round%2 == 1 {
			g.killLeader()
		}
		pods.Wait()
		winner, loser := "", ""
		eventually(t, *haLease*3+patience, func() error {
			g.keep(t)
			red, blue := g.bound(names[0]), g.bound(names[1])
			switch {
			case red == size && blue == 0:
				winner, loser = names[0], names[1]
			case blue == size && red == 0:
				winner, loser = names[1], names[0]
			case red > 0 && blue > 0:
				return fatal{fmt.Errorf("round %d: %d pods of one gang and %d of the other are placed", round, red, blue)}
			default:
				return fmt.Errorf("round %d: %d and %d of %d pods are placed", round, red, blue, size)
			}
			return nil
		})
		g.remove(winner)
		eventually(t, *haLease*3+patience, func() error {
			g.keep(t)
			return differ(g.bound(loser), size)
		})
		g.remove(loser)
		eventually(t, patience, func() error { return differ(g.left(), 0) })
	}
	t.Logf("%d rounds, leadership lost for want of CPU %d times", *gangRounds, g.lost)
}

// left returns the number of remaining pods of all gangs.
func (g *gangs) left() (n int) {
	list, err := g.c.client.CoreV1().Pods("default").List(background(), metav1.ListOptions{})
	if err != nil {
		g.t.Fatal(err)
	}
	for i := range list.Items {
		if list.Items[i].Labels["gang"] != "" {
			n++
		}
	}
	return n
}

// TestAGangOfFiftyOutlivesItsSchedulerAndANode verifies that all fifty pods of a gang run although
// the leading scheduler is killed after some of them are bound. It also verifies that the successor
// of a member on a deleted node joins the gang, although a single pod is below the gang's minimum.
func TestAGangOfFiftyOutlivesItsSchedulerAndANode(t *testing.T) {
	nightly.Only(t)
	t.Parallel()
	const size = 50
	g := newGangs(t, size+5)
	g.group("gang", size)
	leads := g.leader(t)
	g.replicas = slices.DeleteFunc(g.replicas, func(r *replica) bool { return r == leads })
	watched, err := g.c.client.CoreV1().Pods("default").Watch(background(), metav1.ListOptions{LabelSelector: "gang=gang"})
	if err != nil {
		t.Fatal(err)
	}
	defer watched.Stop()
	var pods sync.WaitGroup
	for i := range size {
		pods.Go(func() { g.pod(fmt.Sprint("filler-", i), "") })
		pods.Go(func() { g.pod(fmt.Sprint("gang-", i), "gang") })
	}
	for event := range watched.ResultChan() {
		if p, ok := event.Object.(*v1.Pod); ok && p.Spec.NodeName != "" {
			break
		}
	}
	leads.strike(t, false)
	pods.Wait()
	half := g.bound("gang")
	eventually(t, *haLease*3+patience, func() error {
		g.keep(t)
		return differ(g.bound("gang"), size)
	})

	lost, err := g.c.client.CoreV1().Pods("default").Get(background(), "gang-0", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.c.client.CoreV1().Nodes().Delete(background(), lost.Spec.NodeName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, 3*patience, func() error { // pod garbage collection begins after 40 s
		if _, err := g.c.client.CoreV1().Pods("default").Get(background(), "gang-0", metav1.GetOptions{}); err == nil {
			return fmt.Errorf("the pod of the lost node is still there")
		} else if !strings.Contains(err.Error(), "not found") {
			return err
		}
		return nil
	})
	g.pod("gang-again", "gang")
	eventually(t, *haLease*3+patience, func() error {
		g.keep(t)
		return differ(g.bound("gang"), size)
	})
	t.Logf("killed when %d of %d were placed", half, size)
}
