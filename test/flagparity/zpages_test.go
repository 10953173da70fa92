// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package flagparity

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/apiserver/pkg/server/statusz"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	cliflag "k8s.io/component-base/cli/flag"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"sigs.k8s.io/yaml"

	"github.com/berth-k8s/berth/internal/kube/serve"
)

// accepts lists Accept headers of requests for /flagz and /statusz. %s stands for the kind.
var accepts = []string{
	"", " ", "*/*", "text/*", "application/*", "text/html", "text/html, */*;q=0.1", "text/plain", "text/plain;q=0.5, application/json",
	"application/json", "application/yaml", "application/cbor", "application/vnd.kubernetes.protobuf", "nonsense", "application/json;", ";;",
	"application/json;g=config.k8s.io;v=v1alpha1;as=%s", "application/json;v=v1beta1;g=config.k8s.io;as=%s", "application/yaml;as=%s;v=v1beta1;g=config.k8s.io",
	"application/yaml;as=%s;v=v1alpha1;g=config.k8s.io", "application/cbor;as=%s;v=v1beta1;g=config.k8s.io", "application/cbor;as=%s;v=v1alpha1;g=config.k8s.io",
	"application/json;as=%s;v=v1;g=config.k8s.io", "application/json;as=%s;v=v1beta1;g=apps", "application/json;as=Pod;v=v1beta1;g=config.k8s.io",
	"application/json;as=%s;v=v1beta1", "application/json;v=v1beta1;g=config.k8s.io", "text/plain;as=%s;v=v1beta1;g=config.k8s.io",
	"*/*;as=%s;v=v1beta1;g=config.k8s.io", "application/*;as=%s;v=v1alpha1;g=config.k8s.io", "application/json;as=%s;v=v1beta1;g=config.k8s.io;stream=watch",
	"application/json;as=%s;v=v1beta1;g=config.k8s.io;sv=v1", "application/json;as=%s;v=v1beta1;g=config.k8s.io;pretty=1", "application/json;x=y;as=%s;v=v1beta1;g=config.k8s.io",
	"application/yaml;q=0.9;as=%s;v=v1beta1;g=config.k8s.io,application/json;q=0.2;as=%s;v=v1beta1;g=config.k8s.io", "image/png, application/yaml;as=%s;v=v1beta1;g=config.k8s.io",
	"application/json;as=%s;v=v1;g=config.k8s.io, text/plain", "APPLICATION/JSON;as=%s;v=v1beta1;g=config.k8s.io",
}

// TestPagesAreNegotiatedAsUpstream verifies that Berth's /flagz and /statusz return the same status
// code, media type and content as upstream's for every Accept header.
func TestPagesAreNegotiatedAsUpstream(t *testing.T) {
	flags := pflag.NewFlagSet("part", pflag.ContinueOnError)
	flags.Int("answer", 42, "")
	flags.String("token", "s3cret", "")
	if err := flags.SetAnnotation("token", "classified", []string{"true"}); err != nil {
		t.Fatal(err)
	}
	for _, gate := range []bool{false, true} {
		t.Run(fmt.Sprintf("CBOR=%v", gate), func(t *testing.T) {
			featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.CBORServingAndStorage, gate)
			ours := (&serve.Endpoints{Component: "part", Flags: flags}).Handler()
			theirs := http.NewServeMux()
			flagz.Install(theirs, "part", flagz.NamedFlagSetsReader{FlagSets: cliflag.NamedFlagSets{FlagSets: map[string]*pflag.FlagSet{"part": flags}}})
			statusz.Install(theirs, "part", statusz.NewRegistry(compatibility.DefaultBuildEffectiveVersion()))
			for _, page := range []struct{ path, kind string }{{"/flagz", "Flagz"}, {"/statusz", "Statusz"}} {
				for _, accept := range accepts {
					compare(t, page.path, strings.ReplaceAll(accept, "%s", page.kind), ours, theirs)
				}
			}
		})
	}
}

func compare(t *testing.T, path, accept string, ours, theirs http.Handler) {
	t.Helper()
	ask := func(handler http.Handler) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w
	}
	a, b := ask(ours), ask(theirs)
	if a.Code != b.Code {
		t.Errorf("%s, Accept %q: %d, upstream %d\n%s\n%s", path, accept, a.Code, b.Code, a.Body, b.Body)
		return
	}
	for _, header := range []string{"Content-Type", "Warning"} {
		if x, y := a.Header().Get(header), b.Header().Get(header); a.Code == http.StatusOK && x != y {
			t.Errorf("%s, Accept %q: %s %q, upstream %q", path, accept, header, x, y)
		}
	}
	read := func(w *httptest.ResponseRecorder) string {
		object := map[string]any{}
		switch format := w.Header().Get("Content-Type"); {
		case strings.HasPrefix(format, "text/"):
			return "text"
		case strings.HasPrefix(format, "application/cbor"):
			if err := direct.Unmarshal(w.Body.Bytes(), &object); err != nil {
				return err.Error()
			}
		default:
			if err := yaml.Unmarshal(w.Body.Bytes(), &object); err != nil {
				return err.Error()
			}
		}
		return fmt.Sprint(object["kind"], object["apiVersion"], object["message"], object["flags"], object["goVersion"])
	}
	if x, y := read(a), read(b); x != y {
		t.Errorf("%s, Accept %q:\n%s\nupstream\n%s", path, accept, x, y)
	}
}
