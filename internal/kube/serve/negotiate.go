// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/munnerz/goautoneg"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/berth-k8s/berth/internal/answer"
)

// zpagesGroup is the API group of /flagz and /statusz, as in upstream.
const zpagesGroup = "config.k8s.io"

// representation is the requested form of a page: text, or an object of an API version in a
// serialization format.
type representation struct {
	version string // "" for text
	format  runtime.SerializerInfo
	pretty  bool
}

// listFormats returns the supported media types: text/plain, which has no serializer, and the
// formats of API objects. CBOR depends on the same feature gate as in all components of Kubernetes.
func listFormats() []runtime.SerializerInfo {
	text := func(runtime.ObjectCreater, runtime.ObjectTyper) runtime.SerializerInfo {
		return runtime.SerializerInfo{MediaType: "text/plain", MediaTypeType: "text", MediaTypeSubType: "plain"}
	}
	more := []serializer.CodecFactoryOptionsMutator{serializer.WithSerializer(text)}
	if utilfeature.DefaultFeatureGate.Enabled(features.CBORServingAndStorage) {
		more = append(more, serializer.WithSerializer(cbor.NewSerializerInfo))
	}
	all := serializer.NewCodecFactory(runtime.NewScheme(), more...).SupportedMediaTypes()
	return slices.DeleteFunc(slices.Clone(all), func(s runtime.SerializerInfo) bool { return s.MediaType == runtime.ContentTypeProtobuf })
}

// negotiateFormat returns the first available representation, in the Accept header's order of
// preference. Like upstream, a page is served as an object only if the clause names group, version
// and kind, and as text only if it names none of them. It returns false if no representation is
// acceptable.
//
// For example, "application/json;g=config.k8s.io;v=v1beta1;as=Statusz" requests that object in
// JSON, an empty header or "*/*" requests text, and "application/json" without parameters is not
// acceptable.
func (p *zpage) negotiateFormat(accept string) (representation, bool) {
	if strings.TrimSpace(accept) == "" {
		return representation{}, true
	}
	available := listFormats()
	for _, clause := range goautoneg.ParseAccept(accept) {
		for _, format := range available {
			exactly := clause.Type == format.MediaTypeType && clause.SubType == format.MediaTypeSubType
			if !exactly && (clause.SubType != "*" || clause.Type != "*" && clause.Type != format.MediaTypeType) {
				continue
			}
			if wanted, ok := p.acceptParams(clause.Params, format); ok {
				return wanted, true
			}
		}
	}
	return representation{}, false
}

// acceptParams returns the representation requested by a clause with these parameters in the
// format, and reports whether it is available.
func (p *zpage) acceptParams(params map[string]string, format runtime.SerializerInfo) (representation, bool) {
	// Like upstream, streams and server versions are not supported.
	if params["stream"] != "" || params["sv"] != "" {
		return representation{}, false
	}
	// The parameters g, v and as identify an object only together. A request for text must have
	// none of them.
	named := false
	for _, key := range []string{"g", "v", "as"} {
		_, given := params[key]
		named = named || given
	}
	if format.MediaTypeType == "text" {
		return representation{}, !named
	}
	version := params["v"]
	known := params["g"] == zpagesGroup && params["as"] == p.kind && p.objects[version] != nil
	return representation{version: version, format: format, pretty: params["pretty"] == "1"}, known
}

// newEncoder returns the encoder of the format. The encoder pretty-prints if that is requested or,
// like upstream, by default for curl, Wget and browsers.
func (a representation) newEncoder(r *http.Request) runtime.Encoder {
	pretty, err := strconv.ParseBool(r.URL.Query().Get("pretty"))
	if err != nil {
		agent := r.UserAgent()
		pretty = strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") || strings.HasPrefix(agent, "Mozilla/5.0")
	}
	if (pretty || a.pretty) && a.format.PrettySerializer != nil {
		return a.format.PrettySerializer
	}
	return a.format.Serializer
}

// notAcceptable responds with status 406 and a Status object, like an API server.
func notAcceptable(w http.ResponseWriter) {
	types := answer.Mapped(listFormats(), func(f runtime.SerializerInfo) string { return f.MediaType })
	status := metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable,
		Message: "only the following media types are accepted: " + strings.Join(types, ", "),
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusNotAcceptable)
	encoded, err := json.Marshal(status)
	if err != nil {
		return // cannot happen: the status contains only strings and a number
	}
	_, _ = w.Write(append(encoded, '\n'))
}
