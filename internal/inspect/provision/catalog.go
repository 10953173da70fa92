// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/json"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// Catalog holds the nodes available for purchase.
//
// After the catalog is read, Offers are sorted by price. Much code relies on this order: the first
// of several offers that are equivalent for pods is the cheapest.
type Catalog struct {
	Offers []Offer
	Pools  []Pool
	// Notes lists parts of the input that are not offered.
	Notes []string
	// types holds the instance types of a catalog without NodePools, until complete finds NodePools
	// elsewhere; paths holds its files, for errors.
	types []*instanceType
	paths []string
	// rules holds the rules of NodePools for the removal of their nodes, by name.
	rules     map[string]*disruption.NodePool
	completed bool
}

// Offer is a kind of node available for purchase: one zone and one capacity type of an instance
// type in a NodePool, or a template. If three NodePools allow the same instance type, it is offered
// three times.
type Offer struct {
	Pool                     string // name of the NodePool or the node group; otherwise the template's name
	Type, Zone, CapacityType string
	Price                    float64 // per hour
	// Node is a sample of such a node, without a name, with the labels, taints and allocatable
	// resources visible to pods. It is never modified: nodes are copies.
	Node *v1.Node
	// Most is the maximum number of such nodes, including existing ones; 0 means unlimited. Least
	// is the minimum number, if any. The method has decides which nodes count.
	Most, Least int
	// pool is the index of the NodePool in Catalog.Pools; -1 for a template.
	pool int
}

// Pool is a NodePool.
type Pool struct {
	Name   string
	Weight int32
	// The resource "nodes" limits the number of nodes. A pool without limits has a nil map.
	Limits v1.ResourceList
	// claim is the template for NodeClaims of the pool.
	claim nodeClaimTemplate
}

// document is one document of a file.
type document struct {
	file, text string
	from       int // number of preceding lines in the file
}

// decode decodes the document. After an error, it decodes the document once more with empty lines
// in front of it, so that errors contain line numbers of the file.
func (d document) decode(into any) error {
	if d.isPlainJSON(into) || manifest.Decode(d.file, []byte(d.text), into) == nil {
		return nil
	}
	return manifest.Decode(d.file, []byte(strings.Repeat("\n", d.from)+d.text), into)
}

// isPlainJSON decodes the document if it is well-formed JSON, and reports whether it was. It is a
// fast path, because catalogs of clouds contain a megabyte of JSON. For YAML and faulty JSON, it
// clears the partial result and returns false; manifest.Decode then reports each fault.
func (d document) isPlainJSON(into any) bool {
	if text := strings.TrimSpace(d.text); !strings.HasPrefix(text, "[") && !strings.HasPrefix(text, "{") {
		return false
	}
	unknown, err := json.UnmarshalStrict([]byte(d.text), into)
	if err == nil && len(unknown) == 0 {
		return true
	}
	reflect.ValueOf(into).Elem().SetZero()
	return false
}

// ReadCatalog reads the files and folders of a catalog, with YAML or JSON documents; "-" is stdin.
// Faults are reported with file, line and field. Any fault makes the whole catalog fail, because a
// catalog with a missing offer would silently yield a more expensive plan.
func ReadCatalog(paths []string, stdin io.Reader) (*Catalog, error) {
	documents, err := readFiles(paths, stdin)
	if err != nil {
		return nil, err
	}
	return assemble(documents, paths)
}

// mostFaults limits the number of reported faults of a catalog. Further faults often follow from
// the first.
const mostFaults = 10

// assemble builds a catalog from the documents of some paths. The paths appear in errors.
//
// NodePools and instance types may be in different files, in any order, because they are combined
// after all documents were read.
func assemble(documents []document, paths []string) (*Catalog, error) {
	c := &Catalog{}
	var pools []*nodePool
	var types []*instanceType
	var faults []error
	for _, d := range documents {
		if err := c.read(d, &pools, &types); err != nil {
			faults = append(faults, err)
		}
		if len(faults) == mostFaults {
			break
		}
	}

	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	switch {
	// Neither is useful without the other: a NodePool contains no sizes, and an instance type
	// contains neither limits nor a pool's labels.
	case len(pools) > 0 && len(types) == 0:
		return nil, fmt.Errorf("%s: NodePools without instance types: add the file with the instance types, in the format of "+
			"Karpenter's kwok provider", strings.Join(paths, ", "))
	case len(types) > 0 && len(pools) == 0:
		c.types, c.paths = types, paths
		return c, nil
	}
	return c, c.finish(pools, types, paths)
}

// complete adds the NodePools of the cluster or its manifests to a catalog of instance types
// without NodePools. Of a catalog with NodePools, it replaces only the rules for the removal of
// nodes.
func (c *Catalog) complete(found []manifest.Document) error {
	if c.completed {
		return nil
	}
	c.completed = true
	var pools []*nodePool
	for _, d := range found {
		if d.Kind != manifest.NodePool {
			continue
		}
		// A newer Karpenter may have fields with unknown effects, such as further limits.
		if err := c.read(document{d.File, string(d.Text), max(d.Line-1, 0)}, &pools, nil); err != nil {
			var unread nodePool
			_ = manifest.Decode(d.File, d.Text, &unread) // the error is known
			unread.Spec.Disruption.Budgets = []disruption.NodesAtATime{{Nodes: "0"}}
			c.addRules([]*nodePool{&unread})
			c.Notes = append(c.Notes, fmt.Sprintf("NodePool %q is ignored, and its nodes stay: %v", unread.Name, err))
		}
	}
	if len(c.types) == 0 {
		c.addRules(pools)
		return nil
	}
	if len(pools) == 0 {
		return fmt.Errorf("%s: instance types without a NodePool that allows them: neither the catalog nor the cluster has one%s",
			strings.Join(c.paths, ", "), strings.Join(append([]string{""}, c.Notes...), "; "))
	}
	return c.finish(pools, c.types, c.paths)
}

// finish adds the offers of NodePools, and sorts all offers by price.
func (c *Catalog) finish(pools []*nodePool, types []*instanceType, paths []string) error {
	c.combine(pools, types)
	if len(c.Offers) == 0 {
		return errors.New(strings.Join(append([]string{strings.Join(paths, ", ") + ": offers no node"}, c.Notes...), "\n"))
	}
	// Stable: offers with the same price keep the order of the files, so plans are reproducible.
	slices.SortStableFunc(c.Offers, func(a, b Offer) int { return cmp.Compare(a.Price, b.Price) })
	return nil
}

// readFiles returns the documents of files and folders.
func readFiles(paths []string, stdin io.Reader) (list []document, err error) {
	for _, path := range paths {
		read, err := readFile(path, stdin)
		if err != nil {
			return nil, err
		}
		list = append(list, read...)
	}
	return list, nil
}

// readFile returns the documents of a file, or of the files in a folder with the extensions .yaml,
// .yml and .json. It skips subfolders.
func readFile(path string, stdin io.Reader) ([]document, error) {
	if path == "-" {
		text, err := io.ReadAll(io.LimitReader(stdin, mostBytes))
		return documentsOf("-", string(text)), err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, err
		}
		var files []string
		for _, e := range entries {
			if !e.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, strings.ToLower(filepath.Ext(e.Name()))) {
				files = append(files, filepath.Join(path, e.Name()))
			}
		}
		return readFiles(files, stdin)
	}

	// A pipe or a device might never end.
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: is not a regular file", path)
	}
	if info.Size() > mostBytes {
		return nil, fmt.Errorf("%s: has %d bytes: a catalog has at most %d", path, info.Size(), mostBytes)
	}

	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return documentsOf(path, string(text)), nil
}

// mostBytes limits the size of a file: the catalogs of the large clouds have some megabytes.
const mostBytes = 64 << 20

// documentsOf splits a text at lines beginning with "---", and drops empty documents.
func documentsOf(path, text string) (list []document) {
	from := 0
	for _, part := range strings.Split("\n"+text, "\n---") {
		// A part begins with the rest of its separator's line.
		if _, content, _ := strings.Cut(part, "\n"); strings.TrimSpace(content) != "" {
			list = append(list, document{path, content, from})
		}
		from += strings.Count(part, "\n") + 1
	}
	return list
}

// read reads a document by its kind. NodePools and instance types are collected for combine;
// templates become offers immediately.
func (c *Catalog) read(d document, pools *[]*nodePool, types *[]*instanceType) error {
	// A list contains instance types, which lack a kind.
	if text := strings.TrimSpace(d.text); strings.HasPrefix(text, "[") || strings.HasPrefix(text, "- ") {
		var list []*instanceType
		if err := d.decode(&list); err != nil {
			return err
		}
		for i, t := range list {
			if err := t.check(); err != nil {
				return fmt.Errorf("%s: [%d]%w", d.file, i, err)
			}
		}
		*types = append(*types, list...)
		return nil
	}

	switch kind := kindOf(d.text); kind {
	case "NodePool":
		pool := &nodePool{}
		if err := d.decode(pool); err != nil {
			return err
		}
		if err := pool.check(); err != nil {
			return fmt.Errorf("%s: NodePool %q: %w", d.file, pool.Name, err)
		}
		*pools = append(*pools, pool)
	case "Node":
		node := &v1.Node{}
		if err := d.decode(node); err != nil {
			return err
		}
		return c.addTemplate(d.file, node)
	case "List": // the format of templates of the cluster autoscaler's kwok provider
		list := &v1.NodeList{}
		if err := d.decode(list); err != nil {
			return err
		}
		for i := range list.Items {
			if err := c.addTemplate(d.file, &list.Items[i]); err != nil {
				return err
			}
		}
	case "":
		return fmt.Errorf("%s: has no kind: a catalog has NodePools, Nodes with a price, and instance types as a list", d.file)
	default:
		return fmt.Errorf("%s: kind %s: a catalog has NodePools (karpenter.sh/v1), Nodes with a price, and instance "+
			"types as a list", d.file, kind)
	}

	return nil
}

// addTemplate adds the offer of a template node.
func (c *Catalog) addTemplate(file string, node *v1.Node) error {
	offer, err := offerOf(node)
	if err != nil {
		return fmt.Errorf("%s: node %q: %w", file, node.Name, err)
	}
	c.Offers = append(c.Offers, *offer)
	return nil
}

// kindOf returns the kind of a YAML or JSON document, or "". It scans lines without decoding,
// because the kind determines the type to decode into.
func kindOf(text string) string {
	for l := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(l, "kind:"); ok {
			return strings.Trim(strings.TrimSpace(name), `"'`)
		}
		if at := strings.Index(l, `"kind"`); at >= 0 {
			_, value, _ := strings.Cut(l[at+len(`"kind"`):], ":")
			value = strings.TrimSpace(value)
			if quoted, ok := strings.CutPrefix(value, `"`); ok {
				name, _, _ := strings.Cut(quoted, `"`)
				return name
			}
		}
	}
	return ""
}

// ReadAside reads a catalog like [ReadCatalog], but in the background. The returned function waits
// for the result. It allows reading the cluster at the same time, since catalogs are large. Every
// call of wait returns the same result.
func ReadAside(paths []string, stdin io.Reader) (wait func() (*Catalog, error)) {
	wait = sync.OnceValues(func() (*Catalog, error) { return ReadCatalog(paths, stdin) })
	go wait()
	return wait
}
