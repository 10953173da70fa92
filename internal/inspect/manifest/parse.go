// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/config/document"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// found is a result of parsing a chunk: an object of a kind used by Berth (kind and object are
// set), an object of another kind (ignored is set), or faults (problems is set, and the object is
// invalid).
type found struct {
	kind     *kind
	object   metav1.Object
	place    place
	ignored  string
	text     []byte // text of an ignored NodePool
	name     string // name of the object in messages, if the line is ambiguous
	problems []problem
	unknown  []problem // fields that cause warnings
}

// parser turns chunks into objects: text -> tree -> object -> defaults and validation. It is not
// safe for concurrent use, and reuses its tree and decoder.
type parser struct {
	tree    tree
	decoder *decoder
	lenient bool
	// namespace is the namespace of objects without one.
	namespace string
	// head is the head of the last List, and of has the kind and the version that a typed list,
	// such as PodList, implies for its items; "" for a plain List with explicit kinds.
	head string
	of   [2]string
}

// parseChunk reads one chunk, the order-th of the input. It returns several results for a List not
// split by the splitter, and none for an empty document.
func (p *parser) parseChunk(c chunk, order int32) []found {
	// The library is ten times slower, but reads all of YAML. Only the library reports syntax
	// errors, so that messages do not depend on the parser tried first.
	if !p.readTree(c) {
		if fault := parseLibrary(&p.tree, c.text, c.line); fault != nil {
			return []found{{problems: []problem{{line: fault.line, text: fault.text}}}}
		}
		if strings.Contains(c.text, "---") { // such as --- {a: b}
			if line, more := document.Second(c.text); more {
				text := "a second document: put --- on a line of its own before it"
				return []found{{problems: []problem{{line: c.line + int32(max(line, 1)) - 1, text: text}}}}
			}
		}
	}

	// The document has only comments.
	if len(p.tree.nodes) == 0 {
		return nil
	}
	root := int32(0)
	if c.item && !c.json {
		// An item of a YAML List still has its dash, so it is a sequence of one.
		if root = p.tree.nodes[0].first; root == 0 {
			return nil
		}
	}

	if c.head != p.head { // once per List, because the search reads all of the head
		p.head, p.of = c.head, [2]string{}
		if m := kindOfItems.FindStringSubmatch(c.head); m != nil {
			p.of[0] = m[1]
		}
		if m := versionOfItems.FindStringSubmatch(c.head); m != nil {
			p.of[1] = m[1]
		}
	}
	all := p.parseObjects(root, p.of, order)
	// Lines identify objects in messages, unless all objects are on one line, as printed by kubectl
	// get --raw.
	if c.json && c.item && !strings.Contains(c.text, "\n") {
		for i := range all {
			if len(all[i].problems) > 0 {
				all[i].name = p.nameOf(root, p.of[0])
			}
		}
	}

	return all
}

// nameOf returns the kind and the name of an object, as far as they are known: "Pod default/web-0".
func (p *parser) nameOf(n int32, kindName string) string {
	t := &p.tree
	kindName = cmp.Or(t.textOf(n, "kind"), kindName)
	metadata := t.childOf(n, "metadata")
	if metadata == 0 {
		return kindName
	}
	name := t.textOf(metadata, "name")
	if namespace := t.textOf(metadata, "namespace"); namespace != "" {
		name = namespace + "/" + name
	}
	return strings.TrimSpace(kindName + " " + name)
}

// readTree reads a chunk with the fast parser for its form. If it returns false, the tree is
// incomplete, and parseLibrary must read the chunk.
func (p *parser) readTree(c chunk) bool {
	if c.json {
		return parseFlow(&p.tree, c.text, c.line)
	}
	return parseBlock(&p.tree, c.text, c.line)
}

// parseObjects reads an object, or the objects of a List, which may be nested. of is the
// kind and the version that the enclosing List implies.
func (p *parser) parseObjects(n int32, of [2]string, order int32) []found {
	t := &p.tree
	if t.nodes[n].kind != mappingNode {
		// kubectl also ignores an empty document or null.
		if t.nodes[n].text == "" && !t.nodes[n].quoted && t.nodes[n].kind == scalarNode {
			return nil
		}
		return []found{{problems: []problem{{line: t.nodes[n].line, text: "must be an object with apiVersion and kind"}}}}
	}

	kindName, apiVersion := t.textOf(n, "kind"), t.textOf(n, "apiVersion")
	// Items of a typed list, as in a raw response of the API server, omit both.
	if kindName == "" && apiVersion == "" {
		kindName, apiVersion = of[0], of[1]
	}

	if items := t.childOf(n, "items"); items != 0 && strings.HasSuffix(kindName, "List") {
		var all []found
		of := [2]string{strings.TrimSuffix(kindName, "List"), apiVersion}
		for c := t.nodes[items].first; c != 0; c = t.nodes[c].next {
			all = append(all, p.parseObjects(c, of, order)...)
		}
		return all
	}
	return []found{p.parseObject(n, kindName, apiVersion, order)}
}

// kindOfItems and versionOfItems find the kind and the version in the head of a List, YAML or JSON.
// The head was not parsed, because its document is never in memory as a whole.
var (
	kindOfItems    = regexp.MustCompile(`(?m)"?\bkind"?:\s*"?(\w+)List\b`)
	versionOfItems = regexp.MustCompile(`(?m)"?\bapiVersion"?:\s*"?([\w./]+)`)
)

// parseObject decodes, completes and validates one object.
func (p *parser) parseObject(n int32, kindName, apiVersion string, order int32) found {
	line := p.tree.nodes[n].line
	switch {
	case kindName == "":
		return found{problems: []problem{{line, "kind", "required"}}}
	case apiVersion == "":
		return found{problems: []problem{{line, "apiVersion", "required"}}}
	}

	k, ignored, at, fault := findKind(kindName, apiVersion)
	if fault != "" {
		return found{problems: []problem{{p.tree.nodes[p.tree.findPath(n, at)].line, at, fault}}}
	}
	if k == nil {
		f := found{ignored: ignored, place: place{line: line}}
		if PlanKinds[ignored] != "" {
			f.text = p.tree.appendJSON(nil, n)
		}
		return f
	}

	f := found{kind: k, place: place{line: line, order: order}}
	value := reflect.New(k.typ)
	p.decoder.resetFor(&p.tree)
	planOf(k.typ)(p.decoder, n, value.Elem())
	f.object = value.Interface().(metav1.Object)
	f.problems = p.decoder.faults
	p.unknownFields(&f)
	p.finishObject(&f, n)
	return f
}

// findKind finds a kind. If the kind exists only in another version or under a similar name, it
// returns a fault, and the field with the fault. An unknown kind is ignored, and counted under the
// name in ignored:
//
//	Deployment apps/v1                  kind
//	Deployment extensions/v1beta1       fault: must be apps/v1 for a Deployment
//	Pods v1                             fault: did you mean Pod?
//	Service serving.knative.dev/v1      ignored as Service.serving.knative.dev
func findKind(name, apiVersion string) (k *kind, ignored, field, fault string) {
	group, _, hasGroup := strings.Cut(apiVersion, "/")
	if !hasGroup {
		group = ""
	}

	k = kinds[name]
	switch {
	case k != nil && k.apiVersion == apiVersion:
		return k, "", "", ""
	case k != nil && (groupOf(k.apiVersion) == group || isUpstream(group)):
		return nil, "", "apiVersion", fmt.Sprintf("%q: must be %s for a %s", apiVersion, k.apiVersion, name)
	// An unknown kind in a known group is either misspelt or unused by Berth.
	case k == nil && isUpstream(group):
		if meant := similarKind(name); meant != "" {
			return nil, "", "kind", fmt.Sprintf("%q: did you mean %s?", name, meant)
		}
	}

	if group != "" {
		name += "." + group
	}
	return nil, name, "", ""
}

// isUpstream reports whether a group belongs to Kubernetes and has, or had, any of the kinds used
// by Berth. Kind names are unique among these groups, so a kind in the wrong group is a mistake.
func isUpstream(group string) bool {
	return group == "extensions" || rules.Any(maps.Values(kinds), func(k *kind) bool { return groupOf(k.apiVersion) == group })
}

// similarKind returns the kind that differs from a name only in case or by a plural s; "" if no
// kind matches.
func similarKind(name string) string {
	is := func(kind string) bool { return strings.EqualFold(name, kind) || strings.EqualFold(name, kind+"s") }
	if is("List") {
		return "List"
	}
	for kind := range kinds {
		if is(kind) {
			return kind
		}
	}
	return ""
}

// groupOf returns the group of an apiVersion; "" for v1.
func groupOf(apiVersion string) string {
	if group, _, found := strings.Cut(apiVersion, "/"); found {
		return group
	}
	return ""
}

// unknownFields classifies unknown fields. In an object printed by an API server (it has a UID), or
// in a status, an unknown field is from a newer version and is ignored with a warning. In a
// hand-written object it is a mistake that would silently change the meaning.
func (p *parser) unknownFields(f *found) {
	for _, u := range p.decoder.unknown {
		if f.object.GetUID() != "" || strings.HasPrefix(u.path, "status.") {
			f.unknown = append(f.unknown, u)
		} else {
			f.problems = append(f.problems, u)
		}
	}
}

// finishObject sets defaults and validates the object, unless it already has faults. It also
// records the lines of the fields used by checkReferences, which runs without the tree.
func (p *parser) finishObject(f *found, n int32) {
	o := f.object
	if f.kind.namespaced && o.GetNamespace() == "" {
		o.SetNamespace(cmp.Or(p.namespace, metav1.NamespaceDefault))
	}

	// Generate a name, as the API server would.
	if o.GetName() == "" && o.GetGenerateName() != "" {
		o.SetName(o.GetGenerateName() + nameSuffix(f.place.order))
	}
	if len(f.problems) == 0 {
		errs := f.kind.prepare(o)
		if !p.lenient {
			for _, err := range errs {
				f.problems = append(f.problems, fromValidation(&p.tree, n, err))
			}
		}
	}

	slices.SortStableFunc(f.problems, func(a, b problem) int { return int(a.line) - int(b.line) })
	spec := "spec."
	// Workloads have the pod's spec in their template.
	if p.tree.childOf(n, "spec") != 0 && p.tree.childOf(p.tree.childOf(n, "spec"), "template") != 0 {
		spec = "spec.template.spec."
	}

	f.place.nodeName = p.lineOf(n, "spec.nodeName")
	f.place.priorityClass = p.lineOf(n, spec+"priorityClassName")
	f.place.runtimeClass = p.lineOf(n, spec+"runtimeClassName")
}

// lineOf returns the line of a field. If the field is missing, it returns the line of the innermost
// existing object on its path.
func (p *parser) lineOf(n int32, path string) int32 {
	return p.tree.nodes[p.tree.findPath(n, path)].line
}

// nameSuffix returns five letters, like the API server generates for a name. They follow from the
// position in the input, so that they are unique and the same in every run.
func nameSuffix(order int32) string {
	text := strconv.FormatInt(int64(order), 36)
	return strings.Repeat("0", max(0, 5-len(text))) + text
}
