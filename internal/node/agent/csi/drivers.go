package csi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/internal/node/agent/registry"
	"github.com/berth-k8s/berth/internal/node/agent/socket"
)

// Name is how the kubelet calls the kind of volume, in messages and folders.
const Name = "kubernetes.io/csi"

// callMost is how long a driver may take for an operation, as with the kubelet.
const callMost = 2 * time.Minute

// Drivers are those that have registered. Use NewDrivers.
type Drivers struct {
	client kubernetes.Interface
	// node is the node's object as last seen; without a UID while it is not registered.
	node func() *v1.Node

	// reporting is held while the API is told. Take it before mu.
	reporting sync.Mutex
	changed   chan struct{} // there may be something to report

	mu      sync.Mutex
	drivers map[string]driver
	// gone are the drivers to be removed from what the API has.
	gone map[string]bool
	// reported is the node's object, by UID, that has what the drivers say; empty: none has all.
	reported string
}

// driver is one that has registered.
type driver struct {
	endpoint string
	info     info
}

// info is what a driver says of the node.
type info struct {
	// id is what the driver calls the node.
	id string
	// most is how many volumes can be attached; 0: any number.
	most int64
	// topology are the labels of where the node is.
	topology map[string]string
}

func (d driver) same(other driver) bool {
	return d.endpoint == other.endpoint && d.info.id == other.info.id && d.info.most == other.info.most && maps.Equal(d.info.topology, other.info.topology)
}

// NewDrivers returns no drivers yet.
func NewDrivers(client kubernetes.Interface, node func() *v1.Node) *Drivers {
	return &Drivers{client: client, node: node, changed: make(chan struct{}, 1), drivers: map[string]driver{}, gone: map[string]bool{}}
}

// Register takes a driver, after it has said what it calls the node. What it says must suit the
// API; that the API cannot be reached is no reason to refuse a driver whose volumes pods have.
func (d *Drivers) Register(ctx context.Context, p registry.Plugin) error {
	if _, err := version.HighestSupportedVersion(p.Versions); err != nil {
		return fmt.Errorf("none of the versions specified %q are supported: %w", p.Versions, err)
	}
	if err := validName(p.Name); err != nil {
		return err
	}
	said, err := getInfo(ctx, p.Endpoint)
	if err != nil {
		return err
	}
	if err := collision(d.node().Labels, said.topology); err != nil {
		return err
	}
	d.mu.Lock()
	d.drivers[p.Name] = driver{p.Endpoint, said}
	delete(d.gone, p.Name)
	d.reported = ""
	d.mu.Unlock()
	if err := d.report(ctx); isFinal(err, p.Name) {
		d.Deregister(p)
		return err
	}
	d.wake()
	return nil
}

// Deregister gives up a driver.
func (d *Drivers) Deregister(p registry.Plugin) {
	d.mu.Lock()
	delete(d.drivers, p.Name)
	d.gone[p.Name] = true
	d.reported = ""
	d.mu.Unlock()
	d.wake()
}

// Names are the drivers that have registered.
func (d *Drivers) Names() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.drivers))
}

func (d *Drivers) wake() {
	select {
	case d.changed <- struct{}{}:
	default:
	}
}

// getInfo asks a driver what it says of the node.
func getInfo(ctx context.Context, endpoint string) (info, error) {
	conn, err := socket.Dial(endpoint)
	if err != nil {
		return info{}, err
	}
	defer conn.Close()
	answer, err := spec.NewNodeClient(conn).NodeGetInfo(ctx, &spec.NodeGetInfoRequest{})
	if err != nil {
		return info{}, err
	}
	if answer.GetNodeId() == "" {
		return info{}, errors.New("error adding CSI driver node info: driverNodeID must not be empty")
	}
	return info{answer.GetNodeId(), answer.GetMaxVolumesPerNode(), answer.GetAccessibleTopology().GetSegments()}, nil
}

// collision is an error if a label that a driver reports has another value already.
func collision(labels, topology map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(topology)) {
		if has, there := labels[key]; there && has != topology[key] {
			return fmt.Errorf("detected topology value collision: driver reported %q:%q but existing label is %q:%q", key, topology[key], key, has)
		}
	}
	return nil
}

// session is a connection to a driver, for the calls of one operation.
type session struct {
	spec.NodeClient
	can   map[spec.NodeServiceCapability_RPC_Type]bool
	close func()
}

// open connects to a driver and asks what it can do. The operation has to end with the returned
// context, and the session has to be closed.
func (d *Drivers) open(ctx context.Context, name string) (context.Context, *session, error) {
	d.mu.Lock()
	driver, there := d.drivers[name]
	d.mu.Unlock()
	if !there {
		return nil, nil, fmt.Errorf("driver name %s not found in the list of registered CSI drivers", name)
	}
	conn, err := socket.Dial(driver.endpoint)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callMost)
	s := &session{NodeClient: spec.NewNodeClient(conn), can: map[spec.NodeServiceCapability_RPC_Type]bool{}, close: func() { cancel(); _ = conn.Close() }}
	answer, err := s.NodeGetCapabilities(ctx, &spec.NodeGetCapabilitiesRequest{})
	if err != nil {
		s.close()
		return nil, nil, err
	}
	for _, c := range answer.GetCapabilities() {
		s.can[c.GetRpc().GetType()] = true
	}
	return ctx, s, nil
}
