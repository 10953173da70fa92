// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/berth-k8s/berth/internal/inspect/explain"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// user carries out suggestions in a world, like an operator at a terminal. It runs printed commands
// literally, and makes the changes printed without a command as described.
type user struct {
	w       *simulate.World
	objects map[string]metav1.Object // objects other than pods and nodes, by kind/name
}

// visit opens a new world of the town, in which the scheduler has tried the pod.
func (c *town) visit() (*user, error) {
	var copies []metav1.Object
	u := &user{objects: map[string]metav1.Object{}}
	for _, o := range c.objects {
		o := o.(runtime.Object).DeepCopyObject().(metav1.Object)
		copies = append(copies, o)
		u.objects[kindOf(o)+"/"+o.GetName()] = o
	}
	w, err := simulate.Open(manifest.Assemble("town", copies), simulate.Options{})
	if err != nil {
		return nil, err
	}
	w.MakeMissing(1000)
	w.Settle()
	u.w = w
	return u, nil
}

func kindOf(o metav1.Object) string { return strings.ToLower(reflect.TypeOf(o).Elem().Name()) }

// runs lets time pass, and reports whether the pod or its replacement is then on a node.
func (u *user) runs() bool {
	u.w.AdvanceUntilQuiet(15 * time.Minute)
	return slices.ContainsFunc(u.w.InNamespace("default"), func(f simulate.Found) bool {
		return strings.HasPrefix(f.Object.Name, "waits") && f.Refused == "" && f.Pod != nil && f.Pod.NodeName != "" && !f.Pod.Terminating
	})
}

// follow carries out a suggestion. If it cannot make a change, it returns the kind of that change.
func (u *user) follow(s *explain.Suggestion) (unknown string, err error) {
	for i := range s.Changes {
		c := &s.Changes[i]
		switch {
		case c.Command != "":
			err = u.sh(c.Command)
		case len(c.Delete) > 0: // violates a budget, so no command is printed
			for _, p := range c.Delete {
				if _, there := u.w.Find(p.Namespace, p.Name); there {
					err = u.delete("pod", p.Name)
				}
			}
		case c.Kind == "AddNode":
			err = u.addNode(strings.TrimPrefix(c.Object, "node/"), c.Patch)
		case c.Kind == "RunPod":
			at := c.Text[strings.LastIndex(c.Text, " ")+1:]
			err = u.put(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "companion", Labels: map[string]string{"app": "cache"}},
				Spec: v1.PodSpec{NodeName: at, Containers: []v1.Container{{Name: "c", Image: "i", Resources: v1.ResourceRequirements{Requests: amounts("0", "0")}}}}})
			if err != nil {
				return c.Kind, nil // forbidden by a rule of the namespace
			}
		case slices.ContainsFunc(s.Changes, func(o explain.Change) bool { return o.Command != "" && o.Object == c.Object }):
			// the other change's command also makes this one
		default:
			return c.Kind, nil
		}
		if err != nil {
			return "", err
		}
	}
	return "", nil
}

func (u *user) put(object metav1.Object) error {
	_, err := u.w.Apply(manifest.Assemble("", []metav1.Object{object}))
	return err
}

func (u *user) addNode(like string, patch []byte) error {
	n := u.w.Node(like)
	if patch != nil {
		changed, err := patched(n, patch)
		if err != nil {
			return err
		}
		n = changed.(*v1.Node)
	}
	u.w.AddNode(simulate.NodeLike(n, like+"-new"), nil)
	return nil
}

func patched(object metav1.Object, patch []byte) (metav1.Object, error) {
	before, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	after := reflect.New(reflect.TypeOf(object).Elem()).Interface().(metav1.Object)
	merged, err := strategicpatch.StrategicMergePatch(before, patch, after)
	if err != nil {
		return nil, err
	}
	return after, json.Unmarshal(merged, after)
}

// sh runs the commands of a script printed by explain.
func (u *user) sh(script string) error {
	for _, command := range splitScript(script) {
		if err := u.kubectl(command); err != nil {
			return fmt.Errorf("%v: %w", command, err)
		}
	}
	return nil
}

// splitScript splits a script into commands of words, with the quotes removed.
func splitScript(script string) (commands [][]string) {
	var words []string
	word, quoted, some := "", false, false
	end := func() {
		if some {
			words, word, some = append(words, word), "", false
		}
	}
	for i := 0; i < len(script); i++ {
		switch char := script[i]; {
		case quoted && char == '\'':
			quoted = false
		case quoted:
			word += string(char)
		case char == '\'':
			quoted, some = true, true
		case char == '\\':
			i++
			word, some = word+string(script[i]), true
		case char == ' ':
			end()
		default:
			word, some = word+string(char), true
		}
	}
	end()
	for {
		at := slices.Index(words, "&&")
		if at < 0 {
			return append(commands, words)
		}
		commands, words = append(commands, words[:at]), words[at+1:]
	}
}

func (u *user) kubectl(words []string) error {
	flag := func(name string) string {
		if at := slices.Index(words, name); at >= 0 {
			return words[at+1]
		}
		return ""
	}
	switch words[1] {
	case "patch":
		return u.patch(words[2], words[3], flag("-p"), false)
	case "get": // ... | kubectl patch --local ... | kubectl replace --force -f -
		if !slices.Contains(words, "--force") {
			break
		}
		return u.patch(words[2], words[3], flag("-p"), true)
	case "delete":
		names := slices.DeleteFunc(slices.Clone(words[3:]), func(w string) bool {
			return strings.HasPrefix(w, "-") || w == flag("-n")
		})
		for _, name := range names {
			if words[2] != "pod" {
				return fmt.Errorf("unknown")
			}
			if _, there := u.w.Find("default", name); there {
				if err := u.delete("pod", name); err != nil {
					return err
				}
			}
		}
		return nil
	case "create":
		value, err := strconv.Atoi(strings.TrimPrefix(words[4], "--value="))
		if err != nil {
			return err
		}
		return u.put(&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: words[3]}, Value: int32(value)})
	case "uncordon":
		_, err := u.w.Do(&simulate.Operation{Uncordon: &simulate.Nodes{Node: words[2]}})
		return err
	case "taint":
		u.w.ChangeNode(words[3], func(n *v1.Node) {
			n.Spec.Taints = slices.DeleteFunc(slices.Clone(n.Spec.Taints), func(t v1.Taint) bool {
				return slices.Contains(words[4:], t.Key+":"+string(t.Effect)+"-")
			})
		})
		return nil
	}
	return fmt.Errorf("unknown")
}

func (u *user) delete(kind, name string) error {
	_, err := u.w.Do(&simulate.Operation{Delete: &simulate.Delete{Object: kind + "/" + name, Namespace: "default"}})
	return err
}

// patch patches an object, or replaces the object by a patched copy.
func (u *user) patch(kind, name, patch string, replace bool) error {
	object := u.objects[kind+"/"+name]
	if kind == "pod" && !replace {
		f, _ := u.w.Find("default", name)
		object = f.Object
	}
	if object == nil {
		return fmt.Errorf("%s %s not found", kind, name)
	}
	after, err := patched(object, []byte(patch))
	if err != nil {
		return err
	}
	if replace {
		if err := u.delete(kind, name); err != nil {
			return err
		}
		after.SetUID("")
		after.SetResourceVersion("")
	}
	u.objects[kind+"/"+name] = after
	return u.put(after)
}
