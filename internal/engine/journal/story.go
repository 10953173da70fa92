// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Story prints the history of one pod: its changes in the API, each attempt and its result, and the
// actions that name it.
type Story struct {
	Out io.Writer
	Pod types.NamespacedName

	was *v1.Pod // the last version seen
	// names holds the names of pods by UID, since some actions hold only UIDs.
	names map[types.UID]string
}

// Narrate prints the next record of a replay; it is meant for [Options].Each. It prints the event
// and, indented, the resulting decisions and actions.
func (s *Story) Narrate(_ int, r Record, core *cycle.Core) {
	if line := s.describeEvent(r.Event); line != "" {
		records.WriteLine(s.Out, r.At, line)
	}
	for _, d := range core.Decided() {
		if d.Namespace == s.Pod.Namespace && d.Name == s.Pod.Name {
			records.WriteLine(s.Out, r.At, "  "+attemptInWords(d, core.Decision(cluster.Name(s.Pod))))
		}
	}
	// An action names the pod by name, by UID or both; UIDs are replaced so that one search is
	// enough.
	for action := range strings.SplitSeq(r.Actions, "\n") {
		if action = s.replaceUIDs(action); namesPod(action, s.Pod.String()) {
			records.WriteLine(s.Out, r.At, "    "+action)
		}
	}
}

// replaceUIDs replaces the UIDs of pods by their names. A UID in parentheses, as in "name (UID)",
// stays.
func (s *Story) replaceUIDs(action string) string {
	words := strings.Split(action, " ")
	for i, word := range words {
		if name := s.names[types.UID(word)]; name != "" {
			words[i] = name
		}
	}
	return strings.Join(words, " ")
}

// namesPod reports whether the text of an action names a pod. A name that merely begins or ends
// with the pod's name does not count.
func namesPod(action, pod string) bool {
	return slices.ContainsFunc([]string{" ", ":", ","}, func(after string) bool {
		return strings.Contains(action+" ", " "+pod+after)
	})
}

// describeEvent describes the pod's changes in the API. It is empty for events about other objects.
// The names of all pods are remembered, since actions may hold only UIDs.
func (s *Story) describeEvent(e cycle.Event) string {
	switch e := e.(type) {
	case cycle.Seen:
		pod, ok := e.Object.(*v1.Pod)
		if !ok {
			return ""
		}
		if s.names == nil {
			s.names = map[types.UID]string{}
		}
		s.names[pod.UID] = pod.Namespace + "/" + pod.Name
		// Compare by name, so that the story continues if the pod is deleted and recreated.
		if pod.Namespace == s.Pod.Namespace && pod.Name == s.Pod.Name {
			was := s.was
			s.was = pod
			return fmt.Sprintf("%s, version %s", podChange(was, pod), pod.ResourceVersion)
		}
	case cycle.Gone:
		if e.Kind == cycle.Pods && e.Object.GetNamespace() == s.Pod.Namespace && e.Object.GetName() == s.Pod.Name {
			s.was = nil
			return "gone"
		}
	}

	return ""
}

// podChange describes the changes of a pod that matter to scheduling. before is nil if the pod did
// not exist.
func podChange(before, after *v1.Pod) string {
	// The pod is new, or replaced another pod of the same name.
	if before == nil || before.UID != after.UID {
		text := "appears"
		if after.Spec.NodeName != "" {
			text += " on " + after.Spec.NodeName
		}
		return text
	}

	var changes []string
	note := func(changed bool, text string) {
		if changed {
			changes = append(changes, text)
		}
	}

	note(before.Spec.NodeName != after.Spec.NodeName, "bound to "+after.Spec.NodeName)
	nominated := after.Status.NominatedNodeName
	note(before.Status.NominatedNodeName != nominated && after.Spec.NodeName == "", "nominated to "+cmp.Or(nominated, "no node"))
	note(before.DeletionTimestamp == nil && after.DeletionTimestamp != nil, "deletion requested")
	note(before.Status.Phase != after.Status.Phase, "phase "+string(after.Status.Phase))
	note(len(before.Spec.SchedulingGates) != len(after.Spec.SchedulingGates), fmt.Sprintf("%d scheduling gates", len(after.Spec.SchedulingGates)))
	note(!maps.Equal(before.Labels, after.Labels) && before.Spec.NodeName == after.Spec.NodeName, "labels changed")
	return cmp.Or(strings.Join(changes, ", "), "changed")
}

// attemptInWords describes an attempt. after is the core's decision about the pod after the
// attempt; it is nil if the core no longer holds one, which may happen for a placed pod.
func attemptInWords(d, after *decision.Decision) string {
	attempt := "attempt"
	if after != nil && after.Queue != nil && after.Queue.Attempts > 0 {
		attempt = fmt.Sprintf("attempt %d", after.Queue.Attempts)
	}

	switch {
	case d.Result == decision.Placed && d.Feasible > 1:
		return fmt.Sprintf("%s: %s, the best of %d feasible nodes of %d, score %d", attempt, d.Node, d.Feasible, d.Nodes, d.Score)
	case d.Result == decision.Placed && d.Feasible == 1:
		return fmt.Sprintf("%s: %s, the only feasible node of %d", attempt, d.Node, d.Nodes)
	// Feasible is 0 if no other node was evaluated.
	case d.Result == decision.Placed:
		return fmt.Sprintf("%s: %s, the nominated node", attempt, d.Node)
	}

	text := attempt + ": " + d.Message
	if len(d.Victims) > 0 {
		names := rules.Mapped(d.Victims, func(v decision.Name) string { return v.Namespace + "/" + v.Name })
		text += fmt.Sprintf(" Preempts on %s: %s", d.NominatedNode, strings.Join(names, ", "))
	}

	return text
}
