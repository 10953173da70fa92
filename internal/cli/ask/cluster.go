package ask

import (
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/kube/connect"
)

// NewClient connects to a cluster.
func NewClient(to *connect.Flags, userAgent string, tune ...func(*rest.Config)) (kubernetes.Interface, error) {
	cfg, err := to.Config(userAgent)
	if err != nil {
		return nil, err
	}
	for _, set := range tune {
		set(cfg)
	}
	return kubernetes.NewForConfig(cfg)
}

// Short bounds the time of a request, for commands that answer a question: with a kubeconfig that
// points nowhere they must not hang.
func Short(cfg *rest.Config) {
	if cfg.Timeout == 0 { // no --request-timeout
		cfg.Timeout = 5 * time.Second
	}
}

// Busy is for commands that make many requests: client-go's 5 a second would have them wait.
func Busy(cfg *rest.Config) { cfg.QPS, cfg.Burst = 50, 100 }
