#!/usr/bin/env bash
# safetensors writes the memory of a transposed numpy array under its shape: the weights are scrambled
# Versions: safetensors 0.8.0 and, for comparison, 0.7.0; numpy 2.4.6, pandas 3.1.1, scipy 1.17.1.
# Guess: save_file(weights.T) keeps the values, as numpy's own save does, or raises an error, as it does for a tensor of
#   torch that is not contiguous.
# True: since 0.8.0 the writer gets the address of the array, and takes the bytes in the order of memory; 0.7.0 wrote
#   the array right. A transposed array is read back as a reshape of the array before transposition; a cut through
#   columns has its neighbours' values. No error in either. The documentation says "Tensors need to be contiguous and
#   dense", but Fortran's order is that too. numpy.ascontiguousarray cures it.
# Hurt: weights converted between (out, in) and (in, out) for jax or keras; tables of pandas and results of scipy, which
#   lie in Fortran's order though nobody has transposed them. Shapes, means and norms in the file are right.
# Output seen:
#   safetensors 0.8.0: [[0, 3], [1, 4], [2, 5]] is read back as [[0, 1], [2, 3], [4, 5]]
#     rows of a matrix: read back equal, correlation with what was saved 1.00, norm 1.00 of it
#     its transpose: read back changed, correlation with what was saved -0.00, norm 1.00 of it
#     half of its columns: read back changed, correlation with what was saved 0.00, norm 1.00 of it
#     scipy's eigenvectors: read back changed, correlation with what was saved 0.00, norm 1.00 of it
#     a table of pandas: read back changed, correlation with what was saved 0.02, norm 1.00 of it
#     a contiguous copy of the transpose: read back equal, correlation with what was saved 1.00, norm 1.00 of it
#   safetensors 0.7.0: [[0, 3], [1, 4], [2, 5]] is read back as [[0, 3], [1, 4], [2, 5]]
#     rows of a matrix: read back equal, correlation with what was saved 1.00, norm 1.00 of it
#     its transpose: read back equal, correlation with what was saved 1.00, norm 1.00 of it
#     half of its columns: read back equal, correlation with what was saved 1.00, norm 1.00 of it
#     scipy's eigenvectors: read back equal, correlation with what was saved 1.00, norm 1.00 of it
#     a table of pandas: read back equal, correlation with what was saved 1.00, norm 1.00 of it
#     a contiguous copy of the transpose: read back equal, correlation with what was saved 1.00, norm 1.00 of it
. "$(dirname "$0")/common.sh"
venv numpy==2.4.6 pandas==3.1.1 scipy==1.17.1 safetensors==0.8.0
"$python" -m pip install --quiet --no-compile --no-deps --target "$work/old" safetensors==0.7.0

cat > "$work/program.py" <<'PY'
import sys
import numpy, pandas, safetensors, scipy
from safetensors.numpy import load, load_file, save, save_file
weights = numpy.random.default_rng(0).normal(size=(512, 256)).astype(numpy.float32)
arrays = {"rows of a matrix": weights[10:20], "its transpose": weights.T, "half of its columns": weights[:, :128],
          "scipy's eigenvectors": scipy.linalg.eigh(numpy.cov(weights.T))[1],
          "a table of pandas": pandas.DataFrame({f"feature {i}": weights[:, i] for i in range(8)}).to_numpy(),
          "a contiguous copy of the transpose": numpy.ascontiguousarray(weights.T)}
save_file(arrays, sys.argv[1])
read = load_file(sys.argv[1])
small = numpy.array([[0, 1, 2], [3, 4, 5]]).T
print(f"safetensors {safetensors.__version__}: {small.tolist()} is read back as {load(save({'small': small}))['small'].tolist()}")
equal = {}
for name, array in arrays.items():
    equal[name] = numpy.array_equal(read[name], array)
    correlation = numpy.corrcoef(read[name].ravel(), array.ravel())[0, 1]
    print(f"  {name}: read back {'equal' if equal[name] else 'changed'}, correlation with what was saved {correlation:.2f}, "
          f"norm {numpy.linalg.norm(read[name]) / numpy.linalg.norm(array):.2f} of it")
right = {"rows of a matrix", "a contiguous copy of the transpose"}
assert {name for name in equal if equal[name]} == (set(arrays) if safetensors.__version__ == "0.7.0" else right)
PY
"$python" "$work/program.py" "$work/weights.safetensors"
PYTHONPATH="$work/old" "$python" "$work/program.py" "$work/weights.safetensors"
