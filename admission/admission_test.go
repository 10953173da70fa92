package admission

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// TestCases runs testdata/*.txt, a file a rule:
//
//	have    an object that pods can name: Namespace, PriorityClass, RuntimeClass
//	config  what the administrator set
//	create  a pod; prints the fields of it named by show=, or the refusal
//	node    a new node; prints its taints
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
			case "node":
				var node v1.Node
				parse(t, d.Input, &node)
				Node(&node)
				return show(t, node.Spec, []string{"taints"})
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
	var fields []string
	for _, arg := range d.CmdArgs {
		if arg.Key == "show" {
			fields = arg.Vals
		}
	}
	return show(t, stored.Spec, fields)
}

// show prints fields of a spec, lists one item a line.
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

// FuzzPod feeds any pod, with any objects that it may name, to the rules: they
// never panic, and what they accept they accept again, unchanged.
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
