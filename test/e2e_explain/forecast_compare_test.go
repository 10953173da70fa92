// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eexplain

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/whatif"
)

// compare compares the actual state with the forecast, pod by pod.
func (f *fortune) compare(t *trial) {
	now, forecast := f.pods(), t.forecast
	leaving := map[string]*whatif.Leaving{}
	for i := range forecast.Leaving {
		if l := &forecast.Leaving[i]; l.Namespace == "forecast" {
			leaving[l.Name] = l
		}
	}
	tolerance := f.stretch(2 * time.Second)
	differs := func(name, reason, format string, args ...any) {
		f.reasons[reason]++
		f.Logf("operation %d, %s: %s: %s", t.number, t.line, name, fmt.Sprintf(format, args...))
	}
	waited, found := map[string]int{}, map[string]int{}
	for uid, p := range t.before {
		f.compared++
		after, there := now[uid]
		stays := there && after.DeletionTimestamp == nil
		l := leaving[p.Name]
		f.mu.Lock()
		gone := f.marked[uid]
		f.mu.Unlock()
		switch {
		case p.DeletionTimestamp != nil: // the pod was already terminating before the operation
			if there == (l == nil) {
				f.agreed++
			} else {
				differs(p.Name, "who has ended", "still there: %t, forecast: %+v", there, l)
			}
		case stays && p.Spec.NodeName == "" && l == nil:
			// The pending pods of a workload are interchangeable, so only the number of placed pods
			// is compared.
			waited[app(p.Name)]++
			if after.Spec.NodeName != "" {
				found[app(p.Name)]++
			}
		case stays != (l == nil) && !(p.Spec.NodeName == "" && l == nil):
			differs(p.Name, "who leaves", "stays: %t, forecast: %+v", stays, l)
		case l != nil && (gone.Before(t.read.AsOf.Add(time.Duration(l.After)-tolerance)) || gone.After(t.done.Add(time.Duration(l.After)+tolerance))):
			differs(p.Name, "when", "left %v after the operation began, forecast %s", gone.Sub(t.began), l.After)
		default:
			f.agreed++
		}
	}
	for name, count := range waited {
		said := 0
		for _, p := range forecast.Placed {
			if p.Before && app(p.Name) == name && leaving[p.Name] == nil {
				said++
			}
		}
		off := min(max(said-found[name], found[name]-said), count)
		f.agreed += count - off
		for range off {
			differs(name, "how many that waited are placed", "%d of %d, forecast %d", found[name], count, said)
		}
	}
	f.compareNew(differs, forecast, t.before, now)
}

// app returns the name of a pod's workload.
func app(name string) string { return strings.SplitN(name, "-", 2)[0] }

// compareNew compares the new pods by workload and node, because their names are random.
func (f *fortune) compareNew(differs func(name, reason, format string, args ...any), forecast *whatif.Forecast, before, now map[types.UID]*v1.Pod) {
	said, came := map[string][]string{}, map[string][]string{}
	renewed := func(name string) bool { // whether a pending pod was deleted and replaced by a pod with the same name
		return slices.ContainsFunc(slices.Collect(maps.Values(now)), func(p *v1.Pod) bool { return p.Name == name && before[p.UID] == nil })
	}
	for _, l := range forecast.Leaving {
		if l.Next != nil && !f.leftAgain(forecast, l.Next.Name) {
			said[app(l.Name)] = append(said[app(l.Name)], l.Next.Node)
		}
	}
	for _, p := range forecast.Placed {
		if !p.Before || renewed(p.Name) {
			said[app(p.Name)] = append(said[app(p.Name)], p.Node)
		}
	}
	for _, p := range forecast.Pending {
		if (!p.Before || renewed(p.Name)) && !slices.ContainsFunc(forecast.Leaving, func(l whatif.Leaving) bool { return l.Next != nil && l.Next.Name == p.Name }) {
			said[app(p.Name)] = append(said[app(p.Name)], "")
		}
	}
	for uid, p := range now {
		if before[uid] == nil && p.DeletionTimestamp == nil {
			came[app(p.Name)] = append(came[app(p.Name)], p.Spec.NodeName)
			f.compared++
			switch nodes := said[app(p.Name)]; {
			case slices.Contains(nodes, p.Spec.NodeName):
				f.agreed++
				i := slices.Index(nodes, p.Spec.NodeName)
				said[app(p.Name)] = slices.Delete(nodes, i, i+1)
			case p.Spec.NodeName != "" && slices.ContainsFunc(nodes, func(n string) bool { return n != "" }) && f.amongTheBest(p):
				f.agreed++ // the scheduler chose at random between equal nodes
				i := slices.IndexFunc(nodes, func(n string) bool { return n != "" })
				said[app(p.Name)] = slices.Delete(nodes, i, i+1)
			default:
				differs(p.Name, "where", "came to %q, forecast %q", p.Spec.NodeName, nodes)
			}
		}
	}
}

func (f *fortune) leftAgain(forecast *whatif.Forecast, name string) bool {
	return slices.ContainsFunc(forecast.Leaving, func(l whatif.Leaving) bool { return l.Name == name && l.Again })
}

// amongTheBest reports whether the pod's node was a plausible choice: in the current cluster, its
// score is nearly the highest. Pods placed later may have changed the scores.
func (f *fortune) amongTheBest(p *v1.Pod) bool {
	s := f.read()
	w, err := simulate.Open(s.Set, simulate.Options{Now: s.AsOf.Time})
	if err != nil {
		f.Fatal(err)
	}
	found, ok := w.Find(p.Namespace, p.Name)
	if !ok || found.Pod == nil {
		return false
	}
	node := found.Pod.Node
	w.Cluster().RemovePod(found.Pod.UID())
	object := *found.Object
	object.Spec.NodeName = ""
	e := decide.NewPlain(w.Cluster(), plugins.Default()).Evaluate(w.Cluster().Pending(&object))
	v, best := e.Verdict(node), e.Best()
	const others = 60 // maximum change of a score by pods placed later
	return v != nil && v.Rejection == nil && len(best) > 0 && best[0].Total-v.Total <= others
}
