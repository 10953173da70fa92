// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simkubelet

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"github.com/berth-k8s/berth/internal/node/pressure"
)

func testShape() Shape {
	return Shape{
		Prefix: "node-", Count: 1, Zones: 0, Region: "r1", Capacity: DefaultCapacity(), Version: "v1.36.3",
		RenewInterval: 10 * time.Second, StatusInterval: 5 * time.Minute, JobRunFor: time.Second, Eviction: pressure.DefaultConfig(),
	}
}

// TestCases plays testdata/*.txt. Time is virtual; each result lists the events and their times.
// The commands:
//
//	nodes [count=N] [zones=N] [pods=N] [cpu=Q] [terminate-after=D] [soft=memory] [grace=D] [max-pod-grace=N] [verbose]
//	pod                       a manifest; nodeName defaults to node-1
//	wait D                    let time pass
//	delete NAME [grace=N] [keep]     keep: a finalizer holds the object
//	edit NAME                 a merge of the manifest below into the pod
//	node NAME [annotation=value ...] [taint=key:Effect] [capacity=name:Q] [unknown] [delete]
//	show NAME                 the pod's or node's status in full, as YAML
//	restart [as nodes]        a new process takes over
//	answer KIND OUTCOME...    the outcomes of the next requests of a kind
func TestCases(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var w *world
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "nodes" {
				w = newWorld(testShape())
				configure(t, w, d)
				w.start()
				return w.reports()
			}
			if text := command(t, w, d); text != "" {
				return text
			}
			return w.reports()
		})
	})
}

func configure(t *testing.T, w *world, d *datadriven.TestData) {
	for _, arg := range d.CmdArgs {
		set := func(name v1.ResourceName) { w.shape.Capacity[name] = resource.MustParse(arg.Vals[0]) }
		switch arg.Key {
		case "count":
			d.ScanArgs(t, "count", &w.shape.Count)
		case "zones":
			d.ScanArgs(t, "zones", &w.shape.Zones)
		case "pods":
			set(v1.ResourcePods)
		case "cpu":
			set(v1.ResourceCPU)
		case "gpu":
			set("nvidia.com/gpu")
		case "terminate-after":
			w.shape.TerminateAfter = mustDuration(t, arg.Vals[0])
		case "soft":
			w.shape.Eviction.Soft = map[string]string{string(pressure.Memory): arg.Vals[0]}
		case "grace":
			w.shape.Eviction.SoftGrace = map[string]string{string(pressure.Memory): arg.Vals[0]}
		case "max-pod-grace":
			d.ScanArgs(t, "max-pod-grace", &w.shape.Eviction.MaxPodGrace)
		case "verbose":
			w.quiet = false
		default:
			d.Fatalf(t, "unknown argument %s", arg.Key)
		}
	}
}

func command(t *testing.T, w *world, d *datadriven.TestData) string {
	name := ""
	if len(d.CmdArgs) > 0 {
		name = d.CmdArgs[0].Key
	}
	switch d.Cmd {
	case "pod":
		w.createPod(readPod(t, d))
	case "wait":
		w.wait(mustDuration(t, name))
	case "delete":
		grace := int64(30)
		for _, arg := range d.CmdArgs[1:] {
			switch arg.Key {
			case "grace":
				d.ScanArgs(t, "grace", &grace)
			case "keep":
				w.pods[name].Finalizers = []string{"example.com/keep"}
			case "left":
				w.leavePod(name)
				return w.reports()
			}
		}
		w.deletePod(name, grace)
	case "edit":
		w.changePod(name, func(pod *v1.Pod) {
			w.merge(pod, yamlToJSON(t, d.Input), pod)
			pod.Generation++
		})
	case "node":
		editNode(t, w, d, name)
	case "show":
		return show(t, w, name)
	case "restart":
		configure(t, w, d)
		w.start()
	case "answer":
		for kind := Register; kind <= Report; kind++ {
			for _, arg := range d.CmdArgs[1:] {
				if kind.String() == name {
					w.outcomes[kind] = append(w.outcomes[kind], map[string]Outcome{"ok": OK, "gone": Gone, "failed": Failed, "refused": Refused}[arg.Key])
				}
			}
		}
		return "ok"
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	return ""
}

func readPod(t *testing.T, d *datadriven.TestData) *v1.Pod {
	pod := &v1.Pod{}
	if err := yaml.UnmarshalStrict([]byte(d.Input), pod); err != nil {
		d.Fatalf(t, "%v", err)
	}
	if pod.Namespace == "" {
		pod.Namespace = "default"
	}
	if pod.Spec.NodeName == "" {
		pod.Spec.NodeName = "node-1"
	}
	if len(pod.Spec.Containers) == 0 {
		pod.Spec.Containers = []v1.Container{{Name: "c", Image: "nginx"}}
	}
	return pod
}

func editNode(t *testing.T, w *world, d *datadriven.TestData, name string) {
	if d.HasArg("delete") {
		w.deleteNode(name)
		return
	}
	w.changeNode(name, func(node *v1.Node) {
		for _, arg := range d.CmdArgs[1:] {
			value := ""
			if len(arg.Vals) > 0 {
				value = arg.Vals[0]
			}
			key, rest, _ := strings.Cut(value, ":")
			switch arg.Key {
			case "taint":
				node.Spec.Taints = append(node.Spec.Taints, v1.Taint{Key: key, Effect: v1.TaintEffect(rest)})
			case "capacity":
				node.Status.Capacity[v1.ResourceName(key)] = resource.MustParse(rest)
			case "no-capacity":
				delete(node.Status.Capacity, v1.ResourceName(key))
			case "unknown":
				// This has the effect of the node lifecycle controller on a silent node.
				for i := range node.Status.Conditions {
					node.Status.Conditions[i].Status = v1.ConditionUnknown
				}
			case "until":
				node.Annotations[AnnotationHeartbeatUntil] = w.now.Add(mustDuration(t, value)).Format(time.RFC3339)
			default:
				if value == "" {
					delete(node.Annotations, prefix+arg.Key)
				} else {
					node.Annotations[prefix+arg.Key] = strings.Join(arg.Vals, ",")
				}
			}
		}
	})
}

func show(t *testing.T, w *world, name string) string {
	var status any
	if pod := w.pods[name]; pod != nil {
		status = pod.Status
	} else if node := w.nodes[name]; node != nil {
		status = map[string]any{"labels": node.Labels, "podCIDR": node.Spec.PodCIDR, "status": node.Status}
	} else {
		return fmt.Sprintf("no %s", name)
	}
	text, err := yaml.Marshal(status)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func mustDuration(t *testing.T, text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func yamlToJSON(t *testing.T, text string) []byte {
	b, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return b
}
