"""Images come from the embedded digits, folders, .npz files, Hugging Face data sets and published collections."""
