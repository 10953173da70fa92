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

	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/json"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
)

// Catalog is what can be bought.
//
// Offers are sorted by price once the catalog is read. Much relies on that: of offers that are the
// same to pods, the first is the cheapest.
type Catalog struct {
	Offers []Offer
	Pools  []Pool
	// Notes are about what was read and is not offered.
	Notes []string
}

// Offer is a kind of node that can be bought. It is one zone and one capacity type of an instance
// type in a NodePool, or a template. Three NodePools that allow the same instance types offer each
// of them three times.
type Offer struct {
	Pool         string // the NodePool or node group; the template's name if there is neither
	Type         string
	Zone         string
	CapacityType string
	Price        float64 // an hour
	// Node is what such a node looks like. It has no name. It has the labels, taints and
	// allocatable resources that pods see. It is not changed: nodes are copies.
	Node *v1.Node
	// Most is how many there can be, those that there are already included; 0 is any number. Least
	// is how many there have to be if there is one. Which nodes count, method has decides.
	Most, Least int
	// pool is where the NodePool is in Catalog.Pools; -1 for a template.
	pool int
}

// Pool is a NodePool.
type Pool struct {
	Name   string
	Weight int32
	// The resource "nodes" bounds their number; a pool without limits has none.
	Limits v1.ResourceList // as nodes and resources
	// claim is what NodeClaims of the pool are made from.
	claim nodeClaimTemplate
}

// document is one document of a file.
type document struct {
	file, text string
	from       int // lines of the file that precede it
}

// decode decodes the document. Errors name lines of the file: what precedes the document stands for
// itself as empty lines then, and only then, since files have many documents.
func (d document) decode(into any) error {
	if d.isPlainJSON(into) {
		return nil
	}
	if manifest.Decode(d.file, []byte(d.text), into) == nil {
		return nil
	}
	return manifest.Decode(d.file, []byte(strings.Repeat("\n", d.from)+d.text), into)
}

// isPlainJSON decodes JSON without a fault: catalogs of clouds are a megabyte of it. What has a
// fault, or is YAML, is for the reader that names each. On a fault, what was decoded so far is
// cleared, so that the other reader begins with nothing.
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

// ReadCatalog reads the files of a catalog: YAML or JSON, several documents in a file, folders; "-"
// is stdin. Every fault has its file, line and field. It fails as a whole: a catalog that lacks an
// offer would give a plan that is dearer than needed, without a word.
func ReadCatalog(paths []string, stdin io.Reader) (*Catalog, error) {
	var documents []document
	for _, path := range paths {
		read, err := readFile(path, stdin)
		if err != nil {
			return nil, err
		}
		documents = append(documents, read...)
	}
	return assemble(documents, paths)
}

// mostFaults is how many faults of a catalog are named. The others often follow from the first.
const mostFaults = 10

// assemble makes a catalog of the documents of some paths.
//
// NodePools and instance types may be in different files, in any order: they are combined once all
// are read. paths are named in errors.
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
	// Neither says anything without the other: a NodePool names no sizes, and an instance type no
	// limits or labels.
	case len(pools) > 0 && len(types) == 0:
		return nil, fmt.Errorf("%s: NodePools and no instance types: name the file that has them, too, as Karpenter's "+
			"kwok provider reads it", strings.Join(paths, ", "))
	case len(types) > 0 && len(pools) == 0:
		return nil, fmt.Errorf("%s: instance types and no NodePool that says which of them may be used", strings.Join(paths, ", "))
	}

	c.combine(pools, types)
	if len(c.Offers) == 0 {
		return nil, errors.New(strings.Join(append([]string{strings.Join(paths, ", ") + ": offers no node"}, c.Notes...), "\n"))
	}

	// Stable: offers with the same price keep the order of the files, so that plans are the same
	// each time.
	slices.SortStableFunc(c.Offers, func(a, b Offer) int { return cmp.Compare(a.Price, b.Price) })
	return c, nil
}

// readFile returns the documents of a file, or of the files in a folder. A folder is read without
// its subfolders, and without files of other extensions.
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
		var list []document
		for _, e := range entries {
			if !e.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, strings.ToLower(filepath.Ext(e.Name()))) {
				read, err := readFile(filepath.Join(path, e.Name()), stdin)
				if err != nil {
					return nil, err
				}
				list = append(list, read...)
			}
		}
		return list, nil
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

// mostBytes is how large a file may be: the catalogs of the large clouds have some megabytes.
const mostBytes = 64 << 20

// documentsOf splits a text at lines that begin with "---". Documents that are empty are left out.
func documentsOf(path, text string) (list []document) {
	line, from := 0, 0
	var lines []string
	flush := func() {
		if strings.TrimSpace(strings.Join(lines, "")) != "" {
			list = append(list, document{path, strings.Join(lines, ""), from})
		}
		lines, from = nil, line
	}

	for l := range strings.Lines(text) {
		line++
		if strings.HasPrefix(l, "---") {
			flush()
			continue
		}
		lines = append(lines, l)
	}

	flush()
	return list
}

// read reads a document by its kind. NodePools and instance types are collected for combine;
// templates become offers at once.
func (c *Catalog) read(d document, pools *[]*nodePool, types *[]*instanceType) error {
	// A list is one of instance types, which have no kind.
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
	case "List": // as the cluster autoscaler's kwok provider has its templates
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

// addTemplate adds the offer of a node that is a template.
func (c *Catalog) addTemplate(file string, node *v1.Node) error {
	offer, err := offerOf(node)
	if err != nil {
		return fmt.Errorf("%s: node %q: %w", file, node.Name, err)
	}
	c.Offers = append(c.Offers, *offer)
	return nil
}

// kindOf returns the kind of a document, of YAML or of JSON. It looks at lines, and decodes
// nothing: the kind has to be known before the type to decode into. "" if there is none.
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
