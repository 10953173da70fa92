// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// TestExpandCases runs testdata/expand.txt, which maps manifests to all pods, in input order, with
// the fields set by their controllers.
func TestExpandCases(t *testing.T) {
	datadriven.RunTest(t, "testdata/expand.txt", func(t *testing.T, d *datadriven.TestData) string {
		set, err := Read([]string{"-"}, strings.NewReader(d.Input+"\n"), Options{})
		if err != nil {
			return err.Error()
		}
		given := len(set.Pods)
		set.JobGroups = d.HasArg("groups")
		set.Expand(1)
		var out strings.Builder
		for _, pod := range set.Pods {
			describe(&out, pod, d.CmdArgs)
		}
		if len(set.Pods) > given {
			for _, claim := range set.PersistentVolumeClaims {
				fmt.Fprintf(&out, "claim %s %s\n", claim.Name, labelText(claim.Labels))
			}
		}
		for _, group := range set.PodGroups {
			fmt.Fprintf(&out, "group %s of %d\n", group.Name, group.Spec.SchedulingPolicy.Gang.MinCount)
			if p := group.Spec.Priority; p != nil {
				fmt.Fprintf(&out, "  priority %d\n", *p)
			}
			if class := group.Spec.PriorityClassName; class != "" {
				fmt.Fprintf(&out, "  priority class %s\n", class)
			}
			for _, claim := range group.Spec.ResourceClaims {
				text, _ := json.Marshal(claim)
				fmt.Fprintf(&out, "  %s\n", text)
			}
		}
		checkCreatable(t, set)
		return out.String()
	})
}

func describe(out *strings.Builder, pod *v1.Pod, fields []datadriven.CmdArg) {
	fmt.Fprintf(out, "%s", pod.Name)
	if ref := metav1.GetControllerOf(pod); ref != nil {
		fmt.Fprintf(out, " of %s/%s", ref.Kind, ref.Name)
	}
	out.WriteByte('\n')
	for _, field := range fields {
		switch field.Key {
		case "labels":
			fmt.Fprintf(out, "  %s\n", labelText(pod.Labels))
		case "groups":
			if g := pod.Spec.SchedulingGroup; g != nil {
				fmt.Fprintf(out, "  in group %s\n", *g.PodGroupName)
			}
		case "node":
			fmt.Fprintf(out, "  for %s\n", workload.DaemonNode(pod))
		case "tolerations":
			for _, toleration := range pod.Spec.Tolerations {
				text, _ := json.Marshal(toleration)
				fmt.Fprintf(out, "  %s\n", text)
			}
		case "volumes":
			for _, volume := range pod.Spec.Volumes {
				text, _ := json.Marshal(volume)
				fmt.Fprintf(out, "  %s\n", text)
			}
		case "hostname":
			fmt.Fprintf(out, "  %s.%s\n", pod.Spec.Hostname, pod.Spec.Subdomain)
		}
	}
}

func labelText(labels map[string]string) string {
	var words []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		words = append(words, key+"="+labels[key])
	}
	return strings.Join(words, " ")
}

// checkCreatable verifies that the API server would accept the created pods.
func checkCreatable(t *testing.T, set *Set) {
	t.Helper()
	objects := admission.NewCatalog(set.Namespaces, set.PriorityClasses, set.RuntimeClasses)
	for _, pod := range set.Pods {
		if pod.UID != "" {
			continue
		}
		if _, err := admission.Create(admission.Config{}, objects, pod); err != nil {
			t.Errorf("%s: %v", pod.Name, err)
		}
	}
}

func TestTheSameSeedGivesTheSamePods(t *testing.T) {
	const text = `{kind: List, apiVersion: v1, items: [
 {kind: ReplicaSet, apiVersion: apps/v1, metadata: {name: a}, spec: {replicas: 50, selector: {matchLabels: {x: why}}, template: {metadata: {labels: {x: why}}, spec: {containers: [{name: c}]}}}}]}`
	names := func(seed int64) (list []string) {
		set, err := Read([]string{"-"}, strings.NewReader(text), Options{})
		if err != nil {
			t.Fatal(err)
		}
		set.Expand(seed)
		for _, pod := range set.Pods {
			list = append(list, pod.Name)
		}
		return list
	}
	first := names(7)
	if again := names(7); !slices.Equal(first, again) {
		t.Fatalf("%v, then %v", first, again)
	}
	if other := names(8); slices.Equal(first, other) {
		t.Fatal("another seed gives the same names")
	}
	if len(slices.Compact(slices.Sorted(slices.Values(first)))) != 50 {
		t.Fatalf("names are not unique: %v", first)
	}
}

func TestExpandingTwiceAddsNothing(t *testing.T) {
	set, err := Read([]string{"-"}, strings.NewReader(everyWorkload), Options{})
	if err != nil {
		t.Fatal(err)
	}
	set.Expand(1)
	before := len(set.Pods)
	if set.Expand(2); len(set.Pods) != before {
		t.Fatalf("%d pods, then %d", before, len(set.Pods))
	}
}

const everyWorkload = `
{kind: Node, apiVersion: v1, metadata: {name: node-1}}
---
{kind: Deployment, apiVersion: apps/v1, metadata: {name: a}, spec: {replicas: 3, selector: {matchLabels: {x: a}}, template: {metadata: {labels: {x: a}}, spec: {containers: [{name: c}]}}}}
---
{kind: StatefulSet, apiVersion: apps/v1, metadata: {name: b}, spec: {replicas: 3, serviceName: b, selector: {matchLabels: {x: b}}, template: {metadata: {labels: {x: b}}, spec: {containers: [{name: c}]}}}}
---
{kind: DaemonSet, apiVersion: apps/v1, metadata: {name: d}, spec: {selector: {matchLabels: {x: d}}, template: {metadata: {labels: {x: d}}, spec: {containers: [{name: c}]}}}}
---
{kind: Job, apiVersion: batch/v1, metadata: {name: j}, spec: {completions: 5, parallelism: 2, completionMode: Indexed, template: {spec: {restartPolicy: Never, containers: [{name: c}]}}}}
---
{kind: ReplicationController, apiVersion: v1, metadata: {name: r}, spec: {replicas: 2, template: {metadata: {labels: {x: r}}, spec: {containers: [{name: c}]}}}}
`
