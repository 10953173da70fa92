// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// runCases runs a text file of cases against one plugin. The commands:
//
//	cluster  forgets the cluster and reads another one (see load)
//	add      adds to it
//	filter   judges every node for the given pod
//	score    scores all nodes for the given pod, feasible or not; except=a,b removes nodes from the feasible ones
func runCases(t *testing.T, path string, plugin func(t *testing.T, d *datadriven.TestData) any) {
	t.Helper()
	c := cluster.New()
	datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "cluster":
			c = cluster.New()
			load(t, c, d.Input)
			return ""
		case "add":
			load(t, c, d.Input)
			return ""
		case "filter":
			return judged(c, plugin(t, d).(Filter).Filter(c, waiting(t, c, d.Input)))
		case "score":
			return scored(t, d, c, plugin(t, d).(Scorer))
		}
		if run, ok := moreCommands[d.Cmd]; ok {
			return run(t, d, c, plugin(t, d))
		}
		d.Fatalf(t, "unknown command %q", d.Cmd)
		return ""
	})
}

// moreCommands are the commands of single plugins.
var moreCommands = map[string]func(t *testing.T, d *datadriven.TestData, c *cluster.Cluster, plugin any) string{}

func judged(c *cluster.Cluster, j Judge) string {
	var b strings.Builder
	switch {
	case j.Err != nil:
		return fmt.Sprintf("error: %v\n", j.Err)
	case j.All != nil:
		return "all nodes: " + rejection(j.All)
	case j.Node == nil && j.Only == nil:
		return "nothing to judge\n"
	}
	for _, n := range c.SortedNodes() {
		switch {
		case j.Only != nil && !j.Only[n.Name]:
			fmt.Fprintf(&b, "%s: not in question\n", n.Name)
		case j.Node == nil:
			fmt.Fprintf(&b, "%s: ok\n", n.Name)
		default:
			fmt.Fprintf(&b, "%s: %s", n.Name, rejection(j.Node(n)))
		}
	}
	return b.String()
}

func rejection(r *Rejection) string {
	switch {
	case r == nil:
		return "ok\n"
	case r.Err != nil:
		return fmt.Sprintf("error: %v\n", r.Err)
	case r.Unresolvable:
		return fmt.Sprintf("%s, unresolvable: %s\n", r.Code, strings.Join(r.Reasons, "; "))
	}
	return fmt.Sprintf("%s: %s\n", r.Code, strings.Join(r.Reasons, "; "))
}

func scored(t *testing.T, d *datadriven.TestData, c *cluster.Cluster, s Scorer) string {
	except := ""
	d.MaybeScanArgs(t, "except", &except)
	var feasible []*cluster.Node
	for _, n := range c.SortedNodes() {
		if except == "" || !slices.Contains(strings.Split(except, ","), n.Name) {
			feasible = append(feasible, n)
		}
	}
	scoring := s.Score(c, waiting(t, c, d.Input), feasible)
	switch {
	case scoring.Err != nil:
		return fmt.Sprintf("error: %v\n", scoring.Err)
	case scoring.Node == nil:
		return "nothing to score\n"
	}
	raw := make([]int64, len(feasible))
	for i, n := range feasible {
		score, err := scoring.Node(n)
		if err != nil {
			return fmt.Sprintf("error: %v\n", err)
		}
		raw[i] = score
	}
	scores := append([]int64(nil), raw...)
	if scoring.Normalize != nil {
		scoring.Normalize(feasible, scores)
	}
	var b strings.Builder
	for i, n := range feasible {
		fmt.Fprintf(&b, "%s: %d", n.Name, scores[i])
		if scoring.Normalize != nil {
			fmt.Fprintf(&b, " (raw %d)", raw[i])
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// load adds objects to a cluster: YAML documents, or documents of short lines
//
//	node NAME LABEL=VALUE… taint:KEY=VALUE:EFFECT…
//	pod NAME on=NODE [ns=NAMESPACE] [terminating] [copies=N] LABEL=VALUE…
//	namespace NAME LABEL=VALUE…
func load(t *testing.T, c *cluster.Cluster, text string) {
	t.Helper()
	for _, object := range parse(t, text) {
		put(t, c, object)
	}
}

func put(t *testing.T, c *cluster.Cluster, object runtime.Object) {
	t.Helper()
	switch o := object.(type) {
	case *v1.Node:
		c.SetNode(o)
	case *v1.Pod:
		c.SetPod(o)
	default:
		if !c.Put(o) {
			t.Fatalf("no place in a cluster for a %T", object)
		}
	}
}

// waiting reads the single given pod.
func waiting(t *testing.T, c *cluster.Cluster, text string) *cluster.Pod {
	t.Helper()
	objects := parse(t, text)
	if len(objects) != 1 {
		t.Fatalf("%d objects given, want the one pod that waits", len(objects))
	}
	return c.Pending(objects[0].(*v1.Pod))
}

var decoder = func() runtime.Decoder {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1.AddToScheme, appsv1.AddToScheme, storagev1.AddToScheme, resourcev1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
}()

// groups maps kinds to API versions, which documents may omit; all other kinds are in v1.
var groups = map[string]string{
	"ReplicaSet": "apps/v1", "StatefulSet": "apps/v1", "StorageClass": "storage.k8s.io/v1", "CSINode": "storage.k8s.io/v1",
	"CSIDriver": "storage.k8s.io/v1", "CSIStorageCapacity": "storage.k8s.io/v1", "VolumeAttachment": "storage.k8s.io/v1",
	"ResourceClaim": "resource.k8s.io/v1", "ResourceSlice": "resource.k8s.io/v1", "DeviceClass": "resource.k8s.io/v1",
}

func parse(t *testing.T, text string) (objects []runtime.Object) {
	t.Helper()
	for _, document := range strings.Split("\n"+text, "\n---\n") {
		if document = strings.TrimSpace(document); document == "" {
			continue
		}
		if short(document) {
			for _, line := range strings.Split(document, "\n") {
				objects = append(objects, parseLine(t, strings.Fields(line))...)
			}
			continue
		}
		if kind, ok := strings.CutPrefix(document, "kind: "); ok {
			kind, _, _ = strings.Cut(kind, "\n")
			document = "apiVersion: " + cmp.Or(groups[kind], "v1") + "\n" + document
		}
		object, _, err := decoder.Decode([]byte(document), nil, nil)
		if err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		if pod, ok := object.(*v1.Pod); ok {
			identify(pod)
		}
		objects = append(objects, object)
	}
	return objects
}

// identify adds the fields that the API server would have set on a pod.
func identify(pod *v1.Pod) {
	if pod.Namespace == "" {
		pod.Namespace = "default"
	}
	if pod.UID == "" {
		pod.UID = types.UID(pod.Namespace + "/" + pod.Name)
	}
}

func short(document string) bool {
	for _, word := range []string{"node ", "pod ", "namespace "} {
		if strings.HasPrefix(document, word) {
			return true
		}
	}
	return false
}

func parseLine(t *testing.T, words []string) []runtime.Object {
	t.Helper()
	meta := metav1.ObjectMeta{Name: words[1], Labels: map[string]string{}}
	var spec v1.NodeSpec
	var on string
	copies := 0
	for _, word := range words[2:] {
		key, value, _ := strings.Cut(word, "=")
		switch {
		case strings.HasPrefix(word, "taint:"):
			taint, err := rules.ParseTaint(strings.TrimPrefix(word, "taint:"))
			if err != nil {
				t.Fatal(err)
			}
			spec.Taints = append(spec.Taints, taint)
		case word == "unschedulable":
			spec.Unschedulable = true
		case word == "terminating":
			now := metav1.NewTime(time.Unix(0, 0))
			meta.DeletionTimestamp = &now
		case key == "copies":
			copies, _ = strconv.Atoi(value)
		case key == "on":
			on = value
		case key == "ns":
			meta.Namespace = value
		default:
			meta.Labels[key] = value
		}
	}
	switch words[0] {
	case "node":
		return []runtime.Object{&v1.Node{ObjectMeta: meta, Spec: spec}}
	case "pod":
		return pods(v1.Pod{ObjectMeta: meta, Spec: v1.PodSpec{NodeName: on, Containers: []v1.Container{{Name: "c"}}}}, copies)
	case "namespace":
		return []runtime.Object{&v1.Namespace{ObjectMeta: meta}}
	}
	t.Fatalf("%q is neither node, pod nor namespace", words[0])
	return nil
}

// pods returns the pod, or copies of it with a number appended to the name.
func pods(pod v1.Pod, copies int) (objects []runtime.Object) {
	if copies == 0 {
		identify(&pod)
		return []runtime.Object{&pod}
	}
	for i := range copies {
		copied := pod
		copied.Name = fmt.Sprintf("%s-%d", pod.Name, i+1)
		identify(&copied)
		objects = append(objects, &copied)
	}
	return objects
}
