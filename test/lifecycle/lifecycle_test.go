// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/kube/fakeapi"
)

var (
	lives = flag.Int("lives", 15, "random lives that are played")
	first = flag.Uint64("seed", 1, "seed of the first of them")
	tell  = flag.Bool("tell", false, "print each life and both histories")
)

func TestMain(m *testing.M) {
	// The in-memory API server lacks streaming lists.
	if err := utilfeature.DefaultMutableFeatureGate.Set("WatchListClient=false"); err != nil {
		panic(err)
	}
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	os.Exit(m.Run())
}

// change is an event seen by an observer of the API.
type change struct {
	at   time.Duration
	what string // object whose state changed
	is   string // new state
}

func (c change) String() string { return fmt.Sprintf("%7.1f %s %s", c.at.Seconds(), c.what, c.is) }

// live plays a script with a side's controllers, and returns the changes seen by an observer.
func live(t *testing.T, s *script, run side) (seen []change) {
	synctest.Test(t, func(t *testing.T) {
		server := fakeapi.New()
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- run(ctx, server, s.options) }()
		watched := make(chan []change)
		go func() {
			seen, err := observe(ctx, server, s.ends)
			if err != nil {
				t.Error(err)
			}
			watched <- seen
		}()
		play(s, server)
		seen = <-watched
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		// Upstream leaves goroutines that retry until they time out, and the synctest bubble must
		// not end before they do. Virtual time costs nothing.
		time.Sleep(2 * time.Hour)
	})
	return seen
}

const gone = "gone"

// observe follows nodes and pods from the beginning, so that it does not miss short-lived objects.
func observe(ctx context.Context, server *fakeapi.Server, ends time.Duration) (seen []change, err error) {
	ctx, stop := context.WithTimeout(ctx, ends)
	defer stop()
	core, from := server.Client().CoreV1(), metav1.ListOptions{ResourceVersion: "1"}
	nodes, err := core.Nodes().Watch(ctx, from)
	if err != nil {
		return nil, err
	}
	defer nodes.Stop()
	pods, err := core.Pods("").Watch(ctx, from)
	if err != nil {
		return nil, err
	}
	defer pods.Stop()

	began, was := time.Now(), map[string]map[string]string{} // known state of each object
	note := func(object string, is map[string]string) {
		for _, what := range slices.Sorted(maps.Keys(is)) {
			if was[object][what] != is[what] {
				seen = append(seen, change{time.Since(began), what, is[what]})
			}
		}
		for _, what := range slices.Sorted(maps.Keys(was[object])) {
			if _, still := is[what]; !still {
				seen = append(seen, change{time.Since(began), what, gone})
			}
		}
		was[object] = is
	}

	for {
		select {
		case e := <-nodes.ResultChan():
			if n, is := e.Object.(*v1.Node); is {
				note(n.Name, stateOfNode(n, e.Type))
			}
		case e := <-pods.ResultChan():
			if p, is := e.Object.(*v1.Pod); is {
				note("pod "+p.Name, stateOfPod(p, e.Type))
			}
		case <-ctx.Done():
			return seen, nil
		}
	}
}

func stateOfNode(n *v1.Node, last watch.EventType) map[string]string {
	is := map[string]string{}
	if last == watch.Deleted {
		return is
	}
	for _, t := range n.Spec.Taints {
		is[n.Name+" "+t.Key+":"+string(t.Effect)] = "there"
	}
	for _, c := range n.Status.Conditions {
		is[n.Name+" "+string(c.Type)] = string(c.Status) + " " + c.Reason
	}
	return is
}

func stateOfPod(p *v1.Pod, last watch.EventType) map[string]string {
	is := map[string]string{}
	if last == watch.Deleted {
		return is
	}
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodReady {
			is[p.Name+" on "+p.Spec.NodeName] = "ready " + string(c.Status)
		}
	}
	return is
}

func TestLives(t *testing.T) {
	for i := range *lives {
		seed := *first + uint64(i)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			s := write(seed)
			// Upstream's behaviour may depend on the order of a map. Berth must match upstream in
			// one of five runs.
			var theirs, ours []change
			var differences []string
			for range 5 {
				theirs, ours = live(t, s, upstream), live(t, s, berth)
				if differences = compare(s, theirs, ours); len(differences) == 0 {
					break
				}
			}
			if *tell || len(differences) > 0 {
				t.Logf("%+v", s.options)
				for _, b := range s.nodes {
					t.Logf("node %+v", b)
				}
				for _, d := range s.deeds {
					t.Log(d)
				}
			}
			if *tell {
				t.Logf("upstream:\n%s", join(theirs))
				t.Logf("berth:\n%s", join(ours))
			}
			for _, d := range differences {
				t.Error(d)
			}
		})
	}
}

func join(list []change) string {
	var b strings.Builder
	for _, c := range list {
		fmt.Fprintln(&b, c)
	}
	return b.String()
}

// tolerance is the maximum difference in time between the sides. Both check nodes every five
// seconds. Upstream measures silence from the check that found the last sign of life, Berth from
// the moment of observing the sign. In addition, upstream often taints a silent node only at the
// next check.
const tolerance = 12 * time.Second

// compare returns the differences between the histories.
func compare(s *script, theirs, ours []change) (differences []string) {
	a, b := byWhat(theirs), byWhat(ours)
	for _, what := range keysOf(a, b) {
		if zoneOf(s, what) != "" {
			continue
		}
		on := nodeOf(what)
		if on != "" && !sameTaints(a, b, on) {
			continue // the node's health taints differ, and are compared by zone below
		}
		if x, y := settled(a[what]), settled(b[what]); !alike(x, y) && !(on != "" && closeCall(a, b, what, on)) {
			differences = append(differences, fmt.Sprintf("%s:\n  upstream %v\n  berth    %v", what, x, y))
		}
	}

	// In a zone whose nodes are tainted one by one, upstream follows the order of a map.
	x, y := byZone(s, a), byZone(s, b)
	for _, zone := range keysOf(x, y) {
		if !alikeAtRate(x[zone], y[zone], s.options.pause()) {
			differences = append(differences, fmt.Sprintf("%s:\n  upstream %v\n  berth    %v", zone, x[zone], y[zone]))
		}
	}
	return differences
}

func keysOf(a, b map[string][]change) []string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return slices.Sorted(maps.Keys(all))
}

// alike reports whether both histories have the same states at about the same times.
func alike(a, b []change) bool {
	return slices.EqualFunc(a, b, func(x, y change) bool {
		return x.is == y.is && (x.at-y.at).Abs() <= tolerance
	})
}

// alikeAtRate is alike for events that occur node by node, with a pause after each. The first event
// may be delayed as well, because upstream's limiter also spends tokens on ignored nodes. The last
// event may therefore come too late to be observed.
func alikeAtRate(a, b []change, pause time.Duration) bool {
	if pause < time.Second {
		return alike(a, b)
	}
	if len(a) > len(b) {
		a, b = b, a
	}
	for i := range a {
		if a[i].is != b[i].is || (a[i].at-b[i].at).Abs() > tolerance+time.Duration(i+1)*pause {
			return false
		}
	}
	return len(b)-len(a) <= 1
}

// settled returns a history without momentary states.
func settled(list []change) (rest []change) {
	const moment = tolerance + 5*time.Second
	for _, c := range list {
		pod := nodeOf(c.what) != ""
		for last := len(rest) - 1; last >= 0 && c.at-rest[last].at <= moment && (!pod || last > 0 && c.is == gone); last-- {
			rest = rest[:last]
		}
		switch last := len(rest) - 1; {
		case last < 0 && c.is == gone, last >= 0 && rest[last].is == c.is: // the state is unchanged
		default:
			rest = append(rest, c)
		}
	}
	return rest
}

// zoneOf returns the key under which a zone's evicting health taints are compared, or "" for other
// changes.
func zoneOf(s *script, what string) string {
	node, taint, _ := strings.Cut(what, " ")
	if taint != v1.TaintNodeNotReady+":NoExecute" && taint != v1.TaintNodeUnreachable+":NoExecute" {
		return ""
	}
	for _, b := range s.nodes {
		if b.name == strings.TrimRight(node, "x") {
			return "zone " + b.zone + " " + taint
		}
	}
	return ""
}

// nodeOf returns the node of a pod.
func nodeOf(what string) string {
	_, on, _ := strings.Cut(what, " on ")
	return on
}

// sameTaints reports whether the node's evicting health taints, including short-lived ones, were
// added and removed at about the same times on both sides.
func sameTaints(a, b map[string][]change, node string) bool {
	for _, key := range []string{v1.TaintNodeNotReady, v1.TaintNodeUnreachable} {
		if what := node + " " + key + ":NoExecute"; !alike(a[what], b[what]) {
			return false
		}
	}
	return true
}

// closeCall reports whether a pod was deleted on one side at about the time when a NoExecute taint
// was removed from its node. The other side may then keep the pod.
func closeCall(a, b map[string][]change, pod, node string) bool {
	for _, history := range []map[string][]change{a, b} {
		for _, went := range history[pod] {
			for what, list := range history {
				if of, taint, _ := strings.Cut(what, " "); of != node || !strings.HasSuffix(taint, ":NoExecute") {
					continue
				}
				for _, c := range list {
					if went.is == gone && c.is == gone && (went.at-c.at).Abs() <= tolerance {
						return true
					}
				}
			}
		}
	}
	return false
}

// byZone returns the times at which the nodes of each zone were tainted and untainted.
func byZone(s *script, by map[string][]change) map[string][]change {
	zones := map[string][]change{}
	for what, list := range by {
		if zone := zoneOf(s, what); zone != "" {
			for _, c := range settled(list) {
				kind := zone + " " + c.is
				zones[kind] = append(zones[kind], c)
			}
		}
	}
	for _, list := range zones {
		slices.SortFunc(list, func(a, b change) int { return int(a.at - b.at) })
	}
	return zones
}

func byWhat(list []change) map[string][]change {
	by := map[string][]change{}
	for _, c := range list {
		by[c.what] = append(by[c.what], c)
	}
	return by
}
