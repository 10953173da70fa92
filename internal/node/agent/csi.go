package agent

import (
	"context"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/berth-k8s/berth/internal/node/agent/csi"
	"github.com/berth-k8s/berth/internal/node/agent/registry"
	"github.com/berth-k8s/berth/internal/node/agent/volumes"
)

// openCSI reads what CSI drivers have made for pods.
func (a *Agent) openCSI() (err error) {
	a.drivers = csi.NewDrivers(a.client, a.Node)
	a.publisher, err = csi.NewPublisher(csi.Options{
		Dir: a.config.RootDir, Drivers: a.drivers, Client: a.client, Node: a.config.NodeName, Claimed: a.reportNode,
		Token: func(ctx context.Context, namespace, account string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
			return a.volumes.Token(ctx, namespace, account, request)
		},
	})
	return err
}

// watchPlugins takes plugins that make a socket in the folder of the kubelet's plugin watcher.
func (a *Agent) watchPlugins(ctx context.Context) {
	watcher := registry.Watcher{
		Dir:      filepath.Join(a.config.RootDir, "plugins_registry"),
		Handlers: map[string]registry.Handler{registration.CSIPlugin: a.drivers, registration.DevicePlugin: a.devices},
	}
	watcher.Run(ctx)
}

func criDevices(list []volumes.Device) (out []*runtimeapi.Device) {
	for _, d := range list {
		permissions := "mrw"
		if d.ReadOnly {
			permissions = "r"
		}
		out = append(out, &runtimeapi.Device{ContainerPath: d.ContainerPath, HostPath: d.HostPath, Permissions: permissions})
	}
	return out
}
