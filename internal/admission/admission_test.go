// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// TestCases runs testdata/*.txt, one file per rule:
//
//	have    an object referenced by pods: Namespace, PriorityClass, RuntimeClass
//	config  the administrator's configuration
//	create  a pod; prints its fields named by show=, or the refusal
//	update  the stored pod (old) and the pod sent by a client (new); prints as create
//	class   a priority class being created; prints the refusal
//	node    a new node, or with at=SECONDS an update at that time of an existing one (old); prints its
//	        taints
func TestCases(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, path := range files {
		objects, config := NewCatalog(nil, nil, nil), Config{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "have":
				return have(t, objects, d.Input)
			case "config":
				config = Config{}
				parse(t, d.Input, &config)
				return ""
			case "create":
				return create(t, config, objects, d)
			case "update":
				return update(t, config, objects, d)
			case "class":
				class := &schedulingv1.PriorityClass{}
				parse(t, d.Input, class)
				if err := PriorityClass(objects, class, !d.HasArg("exists")); err != nil {
					return err.Error() + "\n"
				}
				return ""
			case "node":
				return node(t, d)
			}
			return "unknown command " + d.Cmd
		})
	}
}

func parse(t *testing.T, text string, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(text), into); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
}

func have(t *testing.T, objects *Catalog, text string) string {
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal([]byte(text), &kind); err != nil {
		t.Fatal(err)
	}
	switch kind.Kind {
	case "Namespace":
		object := &v1.Namespace{}
		parse(t, text, object)
		objects.Namespaces[object.Name] = object
	case "PriorityClass":
		object := &schedulingv1.PriorityClass{}
		parse(t, text, object)
		objects.PriorityClasses[object.Name] = object
	case "RuntimeClass":
		object := &nodev1.RuntimeClass{}
		parse(t, text, object)
		objects.RuntimeClasses[object.Name] = object
	default:
		t.Fatalf("unknown kind %q", kind.Kind)
	}
	return ""
}

func create(t *testing.T, config Config, objects Objects, d *datadriven.TestData) string {
	var pod v1.Pod
	parse(t, d.Input, &pod)
	if pod.Name == "" {
		pod.Name = "p"
	}
	if pod.Namespace == "" {
		pod.Namespace = "default"
	}
	stored, err := Create(config, objects, &pod)
	if err != nil {
		var refusal *Refusal
		if errors.As(err, &refusal) {
			return fmt.Sprintf("%s (%s)\n", StatusError(&pod, err).Error(), refusal.Field)
		}
		return "error: " + err.Error()
	}
	return show(t, stored.Spec, showing(d))
}

func update(t *testing.T, config Config, objects Objects, d *datadriven.TestData) string {
	var pods struct{ Old, New v1.Pod }
	parse(t, d.Input, &pods)
	for _, pod := range []*v1.Pod{&pods.Old, &pods.New} {
		pod.Name, pod.Namespace = "p", cmp.Or(pod.Namespace, "default")
	}
	err := Change(config, objects, &pods.New, &pods.Old)
	if err == nil {
		err = Judge(config, objects, &pods.New, &pods.Old)
	}
	if err != nil {
		return StatusError(&pods.New, err).Error() + "\n"
	}
	return show(t, pods.New.Spec, showing(d))
}

func node(t *testing.T, d *datadriven.TestData) string {
	if !d.HasArg("at") {
		var node v1.Node
		parse(t, d.Input, &node)
		Node(&node)
		return show(t, node.Spec, []string{"taints"})
	}
	var seconds int64
	d.ScanArgs(t, "at", &seconds)
	var nodes struct {
		Old *v1.Node
		New v1.Node
	}
	parse(t, d.Input, &nodes)
	NoteTaintTimes(&nodes.New, nodes.Old, time.Unix(seconds, 5e8).UTC())
	return show(t, nodes.New.Spec, []string{"taints"})
}

func showing(d *datadriven.TestData) []string {
	for _, arg := range d.CmdArgs {
		if arg.Key == "show" {
			return arg.Vals
		}
	}
	return nil
}

// show prints fields of a spec, and lists one item per line.
func show(t *testing.T, spec any, fields []string) string {
	data, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]any
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, field := range fields {
		list, isList := all[field].([]any)
		if !isList {
			list = []any{all[field]}
		}
		for _, item := range list {
			line, err := json.Marshal(item)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&out, "%s: %s\n", field, line)
		}
	}
	return out.String()
}

// TestOverheadThatAnotherWebhookLeftIsRefused verifies that a pod is refused if a webhook changes
// or removes the overhead of its class after the rules.
func TestOverheadThatAnotherWebhookLeftIsRefused(t *testing.T) {
	objects, name := NewCatalog(nil, nil, nil), "kata"
	objects.RuntimeClasses[name] = &nodev1.RuntimeClass{Overhead: &nodev1.Overhead{PodFixed: v1.ResourceList{"cpu": resource.MustParse("250m")}}}
	pod := &v1.Pod{Spec: v1.PodSpec{RuntimeClassName: &name}}
	if err := Pod(Config{}, objects, pod); err != nil {
		t.Fatal(err)
	}
	for _, left := range []v1.ResourceList{nil, {"cpu": resource.MustParse("1m")}} {
		pod.Spec.Overhead = left
		if err := Judge(Config{}, objects, pod, nil); err == nil {
			t.Errorf("overhead %v passes, the class has 250m", left)
		}
	}
}

func TestALookupThatFailsIsNoRefusal(t *testing.T) {
	pod := &v1.Pod{}
	err := Pod(Config{}, broken{NewCatalog(nil, nil, nil)}, pod)
	var refusal *Refusal
	if err == nil || errors.As(err, &refusal) {
		t.Fatalf("got %v, want an error that is not a refusal", err)
	}
	if status := StatusError(pod, err); status.Status().Reason != metav1.StatusReasonInternalError {
		t.Fatalf("reason %s", status.Status().Reason)
	}
}

type broken struct{ *Catalog }

func (broken) DefaultPriorityClass() (*schedulingv1.PriorityClass, error) {
	return nil, errors.New("connection refused")
}

// FuzzPod applies the rules to arbitrary pods with arbitrary referenced objects. It verifies that
// they never panic, and accept their own result unchanged.
func FuzzPod(f *testing.F) {
	f.Add(`{"spec":{"tolerations":[{"operator":"Exists"}],"containers":[{"resources":{"requests":{"nvidia.com/gpu":"1"}}}]}}`,
		`{"scheduler.alpha.kubernetes.io/defaultTolerations":"[{\"key\":\"a\",\"operator\":\"Exists\"}]","berth.dev/dedicated-nodes":"a=b"}`,
		`{"overhead":{"podFixed":{"cpu":"250m"}},"scheduling":{"nodeSelector":{"a":"b"},"tolerations":[{"key":"node.kubernetes.io/not-ready","operator":"Exists","effect":"NoExecute"}]}}`)
	f.Add(`{"spec":{"runtimeClassName":"r","tolerations":[{"key":"a","value":"1"},{"key":"a","operator":"Equal","value":"1"}]}}`, `{}`,
		`{"scheduling":{"tolerations":[{"key":"a","value":"1"},{"key":"a","operator":"Equal","value":"1","effect":"NoExecute"}]}}`)
	f.Fuzz(func(t *testing.T, podText, annotations, classText string) {
		var pod v1.Pod
		class := nodev1.RuntimeClass{}
		namespace := v1.Namespace{}
		if json.Unmarshal([]byte(podText), &pod) != nil || json.Unmarshal([]byte(annotations), &namespace.Annotations) != nil ||
			json.Unmarshal([]byte(classText), &class) != nil {
			return
		}
		objects := NewCatalog(nil, nil, nil)
		objects.Namespaces[pod.Namespace] = &namespace
		if pod.Spec.RuntimeClassName != nil {
			objects.RuntimeClasses[*pod.Spec.RuntimeClassName] = &class
		}
		first, err := Create(Config{}, objects, &pod)
		if err != nil {
			return
		}
		for _, config := range []Config{{}, {AfterAPIServer: true}} {
			nothingElseChanges(t, config, objects, first)
		}
		second, err := Create(Config{}, objects, first)
		if err != nil {
			t.Fatalf("accepted, then refused: %v", err)
		}
		if !apiequality.Semantic.DeepEqual(first, second) {
			a, _ := json.Marshal(first.Spec)
			b, _ := json.Marshal(second.Spec)
			t.Fatalf("the second pass changed\n%s\ninto\n%s", a, b)
		}
	})
}

// nothingElseChanges applies the rules repeatedly, also as on an update. It verifies that they
// change only the fields of CopyChanges, that they change nothing the second time, and that no
// update removes a toleration.
func nothingElseChanges(t *testing.T, config Config, objects Objects, pod *v1.Pod) {
	once := pod.DeepCopy()
	if Pod(config, objects, once) != nil {
		return
	}
	only := pod.DeepCopy()
	CopyChanges(&only.Spec, &once.Spec)
	if !apiequality.Semantic.DeepEqual(once, only) {
		t.Fatalf("other fields than those of CopyChanges have changed: %+v, %+v", only, once)
	}
	twice := once.DeepCopy()
	if err := Pod(config, objects, twice); err != nil {
		t.Fatalf("accepted, then refused: %v", err)
	}
	if !apiequality.Semantic.DeepEqual(once, twice) {
		a, _ := json.Marshal(once.Spec)
		b, _ := json.Marshal(twice.Spec)
		t.Fatalf("%+v: the second pass changed\n%s\ninto\n%s", config, a, b)
	}
	updated := once.DeepCopy()
	if err := Change(config, objects, updated, once); err != nil {
		t.Fatalf("created, then not to be updated: %v", err)
	}
	if err := Judge(config, objects, updated, once); err != nil {
		t.Fatalf("created, then not to be updated: %v", err)
	}
	for _, toleration := range once.Spec.Tolerations {
		if !newTolerationSet(updated.Spec.Tolerations).has(&toleration) {
			t.Fatalf("an update took %v away", toleration)
		}
	}
}
