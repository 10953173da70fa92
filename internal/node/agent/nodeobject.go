package agent

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// nodeObject is the newest version known of the node's object in the API: answers to requests and
// changes from the watch come in any order.
type nodeObject struct {
	mu   sync.Mutex
	node *v1.Node
	// version is the newest one seen, of the node or of its deletion.
	version string
	// missing: the object has been deleted, and must be registered again.
	missing bool
}

// seen records the object, unless a newer one is known.
func (o *nodeObject) seen(node *v1.Node) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !isOlder(node.ResourceVersion, o.version) {
		o.node, o.version, o.missing = node, node.ResourceVersion, false
	}
}

// gone records that there was no object at a version; false if a newer one is known.
func (o *nodeObject) gone(version string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if isOlder(version, o.version) {
		return false
	}
	o.version, o.missing = version, true
	return true
}

func (o *nodeObject) isMissing() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.missing
}

func (o *nodeObject) newest() *v1.Node {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.node
}

// isOlder is false for versions that cannot be compared: then the last one counts.
func isOlder(is, than string) bool {
	order, err := resourceversion.CompareResourceVersion(is, than)
	return err == nil && order < 0
}
